-- REDRIVE_DELIVERY: redrive dead letters: all of the named ones, or none. Those of one job are sent
-- one after the other, in the order in which they were dead-lettered.
--
-- keys  1 stored answer
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       then the event ids
-- answers
--   ok, {redriven, skipped}   redriven ones; and those already delivered or in progress
--   missing, {items}          these have no dead letter: nothing written
--   reused                    the key was used with another request

-- By the ids of the dead letters: `ms-number`.
function hooks.is_older(left, right)
  local left_ms, left_number = string.match(left.id, '^(%d+)%-(%d+)$')
  local right_ms, right_number = string.match(right.id, '^(%d+)%-(%d+)$')
  if left_ms ~= right_ms then
    return tonumber(left_ms) < tonumber(right_ms)
  end
  return tonumber(left_number) < tonumber(right_number)
end

-- The entries of a list as a set; each list is read once.
function hooks.waiting_in(list, known)
  if not known[list] then
    known[list] = {}
    for _, event_id in ipairs(redis.call('LRANGE', list, 0, -1)) do
      known[list][event_id] = true
    end
  end
  return known[list]
end

operations[$WF_OPERATION_REDRIVE_DELIVERY] = function(key, arg, last)
  local once = once_at(key, arg)
  local before = replay(once)
  if before then
    return before
  end
  local chosen, skipped, missing, lists = {}, {}, {}, {}
  for at = arg + 4, last do
    local event_id = ARGV[at]
    local dead_letter = hooks.dead_letter_at(event_id)
    local waiting = dead_letter and hooks.waiting_in(hooks.redrives(event_id), lists)
    if not dead_letter then
      missing[#missing + 1] = event_id
    elseif dead_letter.status == $REDRIVE_OK or waiting[event_id]
      or redis.call('ZSCORE', names.deliveries, event_id) then
      skipped[#skipped + 1] = event_id
    else
      dead_letter.event_id = event_id
      chosen[#chosen + 1] = dead_letter
    end
  end
  if #missing > 0 then
    return found($FOUND_MISSING, { [$FACT_ITEMS] = missing })
  end
  table.sort(chosen, hooks.is_older)
  local redriven = {}
  for at, dead_letter in ipairs(chosen) do
    local list = hooks.redrives(dead_letter.event_id)
    hooks.mark_dead_letter(dead_letter.event_id, dead_letter, $REDRIVE_QUEUED)
    redis.call('RPUSH', list, dead_letter.event_id)
    redis.call('EXPIRE', list, '$LONGEST_TTL_S')
    redriven[at] = dead_letter.event_id
  end
  for list in pairs(lists) do
    hooks.make_oldest_due(list)
  end
  if #chosen > 0 then
    redis.pcall('PUBLISH', names.wake, redriven[1])
  end
  return keep(once, found($FOUND_OK, { [$FACT_REDRIVEN] = redriven, [$FACT_SKIPPED] = skipped }))
end
