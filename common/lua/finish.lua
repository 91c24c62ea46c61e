-- FINISH: end a job. Hash first, then the terminal event, then XACK, in this order.
--
-- keys  1 job hash   2 events stream   3 lease hash   4 queue stream
-- args  1 job id   2 attempt   3 token   4 consumer group   5 message id
--       6 default ttl_s   7 events kept per job
--       8 status   9 result JSON or ''   10 error JSON or ''
--       11 terminal step   12 terminal data JSON
--       13 number of the first unsent event, then `type, step, data` per unsent event
-- answers
--   ok        ended by this call
--   already   ended before, by this attempt or another; the message is acked
--   lost      another attempt runs it: nothing written, nothing acked
--   gone      the job expired or was deleted: the result has no home; the message is acked

operations[$OPERATION_FINISH] = function(keys, args)
  local job, events, lease, queue = unpack(keys)
  local job_id, attempt, token, group, message_id, default_ttl, events_cap, status =
    unpack(args, 1, 8)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    redis.call('XACK', queue, group, message_id)
    return { $ANSWER_GONE }
  end
  if TERMINAL[record[1]] then
    redis.call('XACK', queue, group, message_id)
    return { $ANSWER_ALREADY }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_EVENT_SEQ)
  if held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end

  local ttl = ttl_seconds(record[2], default_ttl)
  append_numbered(events, events_cap, args, 14, tonumber(args[13]),
    tonumber(held[3]) or 0)
  redis.call('HSET', job, $JOB_STATUS, status, $JOB_UPDATED_TS, now_text,
    $JOB_RESULT, args[9], $JOB_ERROR, args[10])
  redis.call('EXPIRE', job, ttl)
  append_event_or_undo(function()
    redis.call('HSET', job, $JOB_STATUS, record[1], $JOB_RESULT, '', $JOB_ERROR, '')
  end, events, events_cap, status, args[11], args[12])
  redis.call('EXPIRE', events, ttl)
  redis.call('DEL', lease) -- the terminal status fences from here on
  redis.call('XACK', queue, group, message_id)
  finished_jobs = finished_jobs + 1
  hint(job_id)
  return { $ANSWER_OK }
end
