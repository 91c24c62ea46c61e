-- TRIM: forget queue entries that every group has acknowledged.
--
-- keys  none of its own
-- args  none
-- answers
--   ok, entries removed
--
-- The bound is the oldest pending entry, or the last delivered one where nothing is pending,
-- over all groups; an entry nobody has read is never removed.

local function older(left, right)
  local left_ms, left_seq = string.match(left, '(%d+)-(%d+)')
  local right_ms, right_seq = string.match(right, '(%d+)-(%d+)')
  left_ms, right_ms = tonumber(left_ms), tonumber(right_ms)
  if left_ms ~= right_ms then
    return left_ms < right_ms
  end
  return tonumber(left_seq) < tonumber(right_seq)
end

operations[$OPERATION_TRIM] = function()
  if redis.call('EXISTS', queue) == 0 then
    return { $ANSWER_OK, 0 }
  end
  local bound
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', queue)) do
    local fields = {}
    for index = 1, #info, 2 do
      fields[info[index]] = info[index + 1]
    end
    local oldest = redis.call('XPENDING', queue, fields['name'], '-', '+', 1)[1]
    local needed = oldest and oldest[1] or fields['last-delivered-id']
    if not bound or older(needed, bound) then
      bound = needed
    end
  end
  if not bound then
    return { $ANSWER_OK, 0 }
  end
  return { $ANSWER_OK, redis.call('XTRIM', queue, 'MINID', '~', bound) }
end
