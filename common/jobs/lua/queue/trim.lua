-- TRIM: delete queue entries that all groups have acknowledged.
--
-- keys  none
-- args  1 entry after which to search for acknowledged ones between pending ones ('-' at first)
--       2 max entries to read   3 acknowledged entries that may stay
-- answers
--   ok, entries removed, entry after which to continue ('' at the end)
--
-- Entries are trimmed up to the oldest pending one of all groups, or the last delivered one if
-- nothing is pending. An undelivered entry is never removed. Behind a job that runs for hours, or
-- waits for its next attempt, acknowledged entries would accumulate. They are then deleted
-- individually, up to but not including the last delivered one: beyond it, deletions would make
-- the lag unknown to Redis.

-- Deletes the acknowledged entries after `cursor`, as far as all groups have read.
local function delete_acknowledged(groups, cursor, count, delivered)
  local start = cursor == '-' and '-' or '(' .. cursor
  local entries = redis.call('XRANGE', queue, start, delivered, 'COUNT', count)
  if #entries == 0 then
    return 0, ''
  end
  local first, final = entries[1][1], entries[#entries][1]
  local pending = { [delivered] = true }
  for _, group in ipairs(groups) do
    -- More ids may be pending than there are entries: deleted entries stay pending.
    local from = first
    repeat
      local page = redis.call('XPENDING', queue, group, from, final, count)
      for _, held in ipairs(page) do
        pending[held[1]] = true
      end
      from = #page > 0 and '(' .. page[#page][1] or from
    until #page < tonumber(count)
  end
  local removed = 0
  for _, entry in ipairs(entries) do
    if not pending[entry[1]] then
      removed = removed + redis.call('XDEL', queue, entry[1])
    end
  end
  return removed, #entries == tonumber(count) and final or ''
end

operations[$OPERATION_TRIM] = function(_, arg)
  local cursor, count, tolerated = unpack(ARGV, arg, arg + 2)
  if redis.call('EXISTS', queue) == 0 then
    return { $ANSWER_OK, 0, '' }
  end
  local bound, delivered
  local groups, pending, unread = {}, 0, 0
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', queue)) do
    local fields = {}
    for index = 1, #info, 2 do
      fields[info[index]] = info[index + 1]
    end
    groups[#groups + 1] = fields['name']
    pending = pending + fields['pending']
    unread = math.max(unread, tonumber(fields['lag']) or 0)
    local oldest = redis.call('XPENDING', queue, fields['name'], '-', '+', 1)[1]
    local read = fields['last-delivered-id']
    local needed = oldest and oldest[1] or read
    if not bound or older(needed, bound) then
      bound = needed
    end
    if not delivered or older(read, delivered) then
      delivered = read
    end
  end
  if not bound then
    return { $ANSWER_OK, 0, '' }
  end
  local trimmed = redis.call('XTRIM', queue, 'MINID', bound)
  if cursor == '-' and redis.call('XLEN', queue) - pending - unread <= tonumber(tolerated) then
    return { $ANSWER_OK, trimmed, '' }
  end
  local deleted, next_cursor = delete_acknowledged(groups, cursor, count, delivered)
  return { $ANSWER_OK, trimmed + deleted, next_cursor }
end
