-- SAVE_CHECKPOINT: store a checkpoint for later attempts, together with the events before it.
--
-- keys  1 job hash   2 events stream   3 lease hash
-- args  1 job id   2 attempt   3 token   4 field of the checkpoint   5 value JSON
--       6 number of the first unsent event, then `type, step, data` per unsent event
-- answers
--   ok      the events are appended, then the checkpoint is stored, TTLs refreshed. The same call
--           again changes nothing; another value under the same name replaces the first
--   lost    another attempt took over, or the job ended: nothing written
--   gone    the job expired or was deleted: nothing written

operations[$OPERATION_SAVE_CHECKPOINT] = function(key, arg, last, identity)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, attempt, token, field, value, first_number = unpack(ARGV, arg, arg + 5)

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
  local written = tonumber(held[3]) or 0
  if last > arg + 5 then
    written = append_numbered(events, arg + 6, last, tonumber(first_number), written)
    hint(job_id)
  end
  redis.call('HSET', lease, $LEASE_EVENT_SEQ, as_integer(written), field, value)
  redis.call('EXPIRE', events, ttl)
  redis.call('EXPIRE', lease, ttl)
  return { $ANSWER_OK }
end
