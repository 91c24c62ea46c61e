-- EMIT: append events of a running attempt.
--
-- keys  1 job hash   2 events stream   3 lease hash
-- args  1 job id   2 attempt   3 token
--       4 number of the first event within the attempt, then `type, step, data` per event
-- answers
--   ok      appended, TTLs refreshed; events that were already written are skipped
--   lost    another attempt took over, or the job ended: nothing written
--   gone    the job expired or was deleted: nothing written

operations[$OPERATION_EMIT] = function(key, arg, last, identity)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, attempt, token, first_number = unpack(ARGV, arg, arg + 3)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    return { $ANSWER_GONE }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_EVENT_SEQ)
  if TERMINAL[record[1]] or held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end
  local ttl = ttl_seconds(record[2], ARGV[identity + 3])
  redis.call('EXPIRE', job, ttl) -- must come first, see MEMORY in the prelude
  local written = append_numbered(events, arg + 4, last, tonumber(first_number),
    tonumber(held[3]) or 0)
  redis.call('HSET', lease, $LEASE_EVENT_SEQ, as_integer(written))
  redis.call('EXPIRE', events, ttl)
  redis.call('EXPIRE', lease, ttl)
  hint(job_id)
  return { $ANSWER_OK }
end
