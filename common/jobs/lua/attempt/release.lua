-- RELEASE: a stopping worker releases a job, so that another one can take it at once.
--
-- keys  1 job hash   2 events stream   3 lease hash
--       4 running jobs of the task   (only if the task is limited across workers)
-- args  1 job id   2 attempt   3 token   4 message id   5 event data JSON
--       6 number of the first unsent event, then `type, step, data` per unsent event
-- answers
--   ok      the job is queued again, and the attempt does not count; `released` is written, and
--           the idle time of the message is set so high that any worker may claim it
--   lost    another attempt took over, or the job ended: nothing written
--   gone    the job expired or was deleted; the message is acked

operations[$OPERATION_RELEASE] = function(key, arg, last, identity, key_count)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, attempt, token, message_id, data, first_number = unpack(ARGV, arg, arg + 5)
  local group, consumer, _, default_ttl = unpack(ARGV, identity, identity + 3)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    acknowledge(group, message_id)
    return { $ANSWER_GONE }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_EVENT_SEQ)
  if held[1] == attempt and held[2] == spent(token) then
    return { $ANSWER_OK } -- the reply was lost
  end
  if TERMINAL[record[1]] or held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end

  local ttl = ttl_seconds(record[2], default_ttl)
  redis.call('EXPIRE', job, ttl) -- must come first, see MEMORY in the prelude
  append_numbered(events, arg + 6, last, tonumber(first_number), tonumber(held[3]) or 0)
  release_attempt(job, events, lease, token, ttl,
    $EVENT_TYPE_RELEASED, $STEP_WORKER_RELEASE, data)
  redis.call('HINCRBY', lease, $LEASE_RELEASED, 1)
  message_id = renew_message(job, job_id, group, message_id)
  redis.call('HSET', lease, $LEASE_MESSAGE_ID, message_id)
  if key_count == '4' then
    free_slot(KEYS[key + 3], job_id)
  end
  redis.pcall('XCLAIM', queue, group, consumer, 0, message_id, 'IDLE', $LEASE_MAX_MS, 'JUSTID')
  hint(job_id)
  return { $ANSWER_OK }
end
