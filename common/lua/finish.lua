-- FINISH: end a job. Hash first, then the terminal event, then XACK, in this order.
--
-- keys  1 job hash   2 events stream   3 lease hash
-- args  1 job id   2 attempt   3 token   4 message id
--       5 status   6 result JSON or ''   7 error JSON or ''
--       8 terminal step   9 terminal data JSON
--       10 number of the first unsent event, then `type, step, data` per unsent event
-- answers
--   ok        ended by this call
--   already   ended before, by this attempt or another; the message is acked
--   lost      another attempt runs it: nothing written, nothing acked
--   gone      the job expired or was deleted: the result has no home; the message is acked

operations[$OPERATION_FINISH] = function(key, arg, last, who)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, attempt, token, message_id, status, result, failure, step, data, first_number =
    unpack(ARGV, arg, arg + 9)
  local group, default_ttl = ARGV[who], ARGV[who + 3]

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    acknowledge(group, message_id)
    return { $ANSWER_GONE }
  end
  local ttl = ttl_seconds(record[2], default_ttl)
  if TERMINAL[record[1]] then
    ensure_terminal_event(events, record[1], ttl, job_id)
    acknowledge(group, message_id)
    return { $ANSWER_ALREADY }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_EVENT_SEQ)
  if held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end

  append_numbered(events, arg + 10, last, tonumber(first_number), tonumber(held[3]) or 0)
  redis.call('HSET', job, $JOB_STATUS, status, $JOB_UPDATED_TS, now_text,
    $JOB_RESULT, result, $JOB_ERROR, failure)
  redis.call('EXPIRE', job, ttl)
  local ok, fault = pcall(append_event, events, status, step, data)
  if not ok then -- no stream any more: the hash must not keep what no event tells
    redis.call('HSET', job, $JOB_STATUS, record[1], $JOB_RESULT, '', $JOB_ERROR, '')
    error(fault)
  end
  redis.call('EXPIRE', events, ttl)
  redis.call('DEL', lease) -- the terminal status fences from here on
  acknowledge(group, message_id)
  finished_jobs = finished_jobs + 1
  hint(job_id)
  return { $ANSWER_OK }
end
