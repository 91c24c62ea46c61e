-- RETRY: the attempt failed, and the job gets another one later. Its message stays pending.
--
-- keys  1 job hash   2 events stream   3 lease hash
--       4 running jobs of the task   (only if the task is limited across workers)
-- args  1 job id   2 attempt   3 token   4 message id   5 delay ms   6 error JSON
--       7 event data JSON   8 '1' if the attempt does not count, else ''
--       9 number of the first unsent event, then `type, step, data` per unsent event
-- answers
--   ok         the job is queued again, not before the delay is over; `retry` is written. If
--              the attempt does not count, its error is not recorded either
--   canceled   a cancel was requested: the job has ended, and the message is acked
--   lost       another attempt took over, or the job ended: nothing written
--   gone       the job expired or was deleted; the message is acked

operations[$OPERATION_RETRY] = function(key, arg, last, identity, key_count)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, attempt, token, message_id, delay_ms, failure, data, free, first_number =
    unpack(ARGV, arg, arg + 8)
  local group, consumer, _, default_ttl = unpack(ARGV, identity, identity + 3)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    acknowledge(group, message_id)
    return { $ANSWER_GONE }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_EVENT_SEQ,
    $LEASE_CANCEL_MS)
  if held[1] == attempt and held[2] == spent(token) then
    return { $ANSWER_OK } -- the reply was lost
  end
  if TERMINAL[record[1]] or held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end

  local ttl = ttl_seconds(record[2], default_ttl)
  redis.call('EXPIRE', job, ttl) -- must come first, see MEMORY in the prelude
  append_numbered(events, arg + 9, last, tonumber(first_number), tonumber(held[3]) or 0)
  local running = key_count == '4' and KEYS[key + 3]
  if held[4] then
    end_job(job, events, record[1], $STATUS_CANCELED, '', failure, $STEP_WORKER_CANCEL, data, ttl)
    redis.call('DEL', lease)
    if running then
      free_slot(running, job_id)
    end
    acknowledge(group, message_id)
    hint(job_id)
    return { $ANSWER_CANCELED }
  end
  -- The keys must outlive the delay.
  ttl = as_integer(ttl + math.ceil(delay_ms / 1000))
  release_attempt(job, events, lease, token, ttl, $EVENT_TYPE_RETRY, $STEP_WORKER_RETRY, data)
  message_id = renew_message(job, job_id, group, message_id)
  redis.call('HSET', lease, $LEASE_MESSAGE_ID, message_id,
    $LEASE_NOT_BEFORE_MS, as_integer(now_ms + delay_ms))
  if free ~= '' then
    redis.call('HINCRBY', lease, $LEASE_RELEASED, 1)
    redis.call('XTRIM', events, 'MAXLEN', '~', events_cap) -- there may be many such retries
  else
    redis.call('HSETNX', lease, $LEASE_FIRST_ERROR, failure)
    redis.call('HSET', lease, $LEASE_LAST_ERROR, failure)
  end
  if running then
    free_slot(running, job_id)
  end
  redis.pcall('XCLAIM', queue, group, consumer, 0, message_id, 'JUSTID')
  hint(job_id)
  return { $ANSWER_OK }
end
