-- DEAD: dead-letter an invalid entry of the result stream, and acknowledge it.
--
-- keys  1 results   2 dead results
-- args  1 entry id   2 consumer group   3 reason   4 deliveries   then `field, value` of the entry
-- answers
--   ok        done
--   already   it is not pending any more (lost reply, or another consumer): nothing written

operations[$IMG_OPERATION_DEAD] = function(key, arg, last)
  local entry_id, group, reason, deliveries = unpack(ARGV, arg, arg + 3)
  local results, dead_results = KEYS[key], KEYS[key + 1]
  must_be(results, 'stream')
  must_be(dead_results, 'stream')
  -- Acknowledged first, which needs no memory: then Redis accepts the dead letter too.
  if redis.call('XACK', results, group, entry_id) == 0 then
    return found($FOUND_ALREADY)
  end
  local fields = { unpack(ARGV, arg + 4, last) }
  for _, more in ipairs({ $DEAD_RESULT_REASON, reason, $DEAD_RESULT_DELIVERY_COUNT, deliveries,
    $DEAD_RESULT_AT, now_rfc3339 }) do
    fields[#fields + 1] = more
  end
  redis.call('XADD', dead_results, 'MAXLEN', '~', '$DEAD_RESULTS_KEPT', '*', unpack(fields))
  return found($FOUND_OK)
end
