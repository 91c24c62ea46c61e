-- REMOVE_IDLE_CONSUMERS: remove long idle consumers without pending messages from a group.
--
-- keys  none
-- args  1 consumer group   2 idle ms after which a consumer is removed
-- answers
--   ok, consumers removed
--
-- Check and removal must be one step: removing a consumer drops its pending entries for good.

operations[$OPERATION_REMOVE_IDLE_CONSUMERS] = function(_, arg)
  local group, idle_ms = ARGV[arg], tonumber(ARGV[arg + 1])
  local consumers = redis.pcall('XINFO', 'CONSUMERS', queue, group)
  if consumers['err'] then
    return { $ANSWER_OK, 0 } -- no queue or no group: no consumers
  end
  local removed = 0
  for _, info in ipairs(consumers) do
    local fields = {}
    for index = 1, #info, 2 do
      fields[info[index]] = info[index + 1]
    end
    if fields['pending'] == 0 and fields['idle'] > idle_ms then
      redis.call('XGROUP', 'DELCONSUMER', queue, group, fields['name'])
      removed = removed + 1
    end
  end
  return { $ANSWER_OK, removed }
end
