-- BEGIN: start the next attempt of a job, if nobody else is running it.
--
-- keys  1 job hash   2 events stream   3 lease hash
-- args  1 job id   2 message id   3 token of this try
-- answers
--   run, attempt      the attempt is ours until its lease runs out; `running` is written
--   busy, ms left     another attempt holds a live lease; nothing written, nothing acked
--   terminal          the job has ended; the message is acked, and a terminal event that a
--                     foreign worker failed to write is added first
--   exhausted         it was begun as often as allowed and never ended: it ends in error now,
--                     is put aside as a dead letter, and the message is acked
--   missing           no job hash; nothing written

-- A job that takes its worker down each time must not go round for ever.
local function give_up(job, events, lease, job_id, message_id, attempt, ttl, status)
  local failure = cjson.encode({
    kind = $ERROR_KIND_EXHAUSTED,
    message = 'begun ' .. attempt .. ' times, and its worker fell silent each time',
    attempt = attempt,
  })
  redis.call('HSET', job, $JOB_STATUS, $STATUS_ERROR, $JOB_UPDATED_TS, now_text,
    $JOB_ERROR, failure)
  local ok, fault = pcall(append_event, events, $STATUS_ERROR, $STEP_WORKER_ERROR, failure)
  if not ok then
    redis.call('HSET', job, $JOB_STATUS, status, $JOB_ERROR, '')
    error(fault)
  end
  redis.call('EXPIRE', job, ttl)
  redis.call('EXPIRE', events, ttl)
  redis.call('DEL', lease)
  local original = redis.call('HMGET', job, $JOB_TASK, $JOB_PAYLOAD)
  put_aside(message_id, $REASON_EXHAUSTED, cjson.encode({
    [$QUEUE_JOB_ID] = job_id,
    [$QUEUE_TASK] = original[1],
    [$QUEUE_PAYLOAD] = original[2],
  }))
  finished_jobs = finished_jobs + 1
  hint(job_id)
end

operations[$OPERATION_BEGIN] = function(key, arg, last, who)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, message_id, token = unpack(ARGV, arg, last)
  local group, consumer, lease_ms, default_ttl, most = unpack(ARGV, who, who + 4)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  local status, ttl = record[1], ttl_seconds(record[2], default_ttl)
  if not status then
    return { $ANSWER_MISSING }
  end
  if TERMINAL[status] then
    ensure_terminal_event(events, status, ttl, job_id)
    acknowledge(group, message_id)
    return { $ANSWER_TERMINAL }
  end

  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_DEADLINE_MS)
  local attempt, deadline = tonumber(held[1]) or 0, tonumber(held[3]) or 0
  if held[2] == token then
    redis.call('HSET', lease, $LEASE_DEADLINE_MS, deadline_after(lease_ms))
    return { $ANSWER_RUN, attempt } -- this try had already begun: its reply was lost
  end
  if deadline > now_ms then
    return { $ANSWER_BUSY, deadline - now_ms }
  end

  if attempt >= tonumber(most) then
    give_up(job, events, lease, job_id, message_id, attempt, ttl, status)
    acknowledge(group, message_id)
    return { $ANSWER_EXHAUSTED, attempt }
  end
  attempt = tostring(attempt + 1)
  redis.call('HSET', lease,
    $LEASE_ATTEMPT, attempt, $LEASE_TOKEN, token, $LEASE_OWNER, consumer,
    $LEASE_DEADLINE_MS, deadline_after(lease_ms), $LEASE_EVENT_SEQ, '0')
  redis.call('HSET', job, $JOB_STATUS, $STATUS_RUNNING, $JOB_UPDATED_TS, now_text)
  local ok, fault = pcall(append_event, events, $EVENT_TYPE_RUNNING,
    $STEP_WORKER_START, '{"attempt":' .. attempt .. '}')
  if not ok then -- no stream: the hash must not keep what no event tells
    redis.call('HSET', job, $JOB_STATUS, status)
    redis.call('DEL', lease)
    error(fault)
  end
  redis.call('EXPIRE', job, ttl)
  redis.call('EXPIRE', events, ttl)
  redis.call('EXPIRE', lease, ttl)
  hint(job_id)
  return { $ANSWER_RUN, attempt }
end
