-- BEGIN: start the next attempt of a job, if no other attempt is running and it is due.
--
-- keys  1 job hash   2 events stream   3 lease hash
--       4 running jobs of the task   (only if the task is limited across workers)
-- args  1 job id   2 message id   3 token of this try
--       4 max attempts ('' for the worker's limit)   5 max running at once ('' for no limit)
-- answers
--   run, attempt, max attempts, attempts released, options
--                     the attempt is held until its lease expires; `running` is written. The
--                     values after the attempt are only sent if a lease hash existed before
--   busy, ms left     another attempt holds a live lease; nothing written, nothing acked
--   wait, ms left     the next attempt is not due yet; nothing written, nothing acked
--   limited           the limit of running jobs is reached; nothing written, nothing acked
--   terminal          the job has ended, or ends now because it was canceled; the message is
--                     acked, after a missing terminal event was added
--   exhausted         all attempts are used up: the job ends in error now, a dead letter is
--                     written, and the message is acked
--   missing           no job hash; nothing written

-- A job that crashes its worker each time must not be retried for ever.
local function end_exhausted_job(job, events, lease, job_id, message_id, attempt, ttl, status)
  local failure = cjson.encode({
    [$DATA_KIND] = $ERROR_KIND_EXHAUSTED,
    [$DATA_MESSAGE] = 'started ' .. attempt .. ' times, and the lease expired each time',
    [$DATA_ATTEMPT] = attempt,
  })
  redis.call('EXPIRE', job, ttl)
  end_job(job, events, status, $STATUS_ERROR, '', failure, $STEP_WORKER_ERROR, failure, ttl)
  dead_letter_job(job, lease, job_id, message_id, as_integer(attempt), failure)
  redis.call('DEL', lease)
  hint(job_id)
end

-- The operation itself; `running` and `max_running` only if the task is limited. Also used by
-- FETCH_AND_BEGIN.
local function begin(identity, job, events, lease, job_id, message_id, token, max_attempts, running,
  max_running)
  local group, consumer, lease_ms, default_ttl, worker_max_attempts =
    unpack(ARGV, identity, identity + 4)

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
  local lease_fields = {}
  if held[1] then
    lease_fields = redis.call('HMGET', lease, $LEASE_MAX_ATTEMPTS, $LEASE_RELEASED, $LEASE_OPTIONS,
      $LEASE_NOT_BEFORE_MS, $LEASE_CANCEL_MS)
  end
  local own_max_attempts, released, options =
    lease_fields[1] or '', lease_fields[2] or '0', lease_fields[3] or ''
  if held[2] == token then
    redis.call('HSET', lease, $LEASE_DEADLINE_MS, deadline_after(lease_ms))
    if running then
      hold_slot(running, job_id, lease_ms)
    end
    return { $ANSWER_RUN, attempt, own_max_attempts, released, options } -- the reply was lost
  end
  if deadline > now_ms then
    return { $ANSWER_BUSY, deadline - now_ms }
  end
  if lease_fields[5] then
    local data = '{"' .. $DATA_ATTEMPT .. '":' .. as_integer(attempt) .. '}'
    redis.call('EXPIRE', job, ttl)
    end_job(job, events, status, $STATUS_CANCELED, '', '', $STEP_WORKER_CANCEL, data, ttl)
    redis.call('DEL', lease)
    acknowledge(group, message_id)
    hint(job_id)
    return { $ANSWER_TERMINAL }
  end
  local not_before = tonumber(lease_fields[4]) or 0
  if not_before > now_ms then
    return { $ANSWER_WAIT, not_before - now_ms }
  end

  max_attempts = tonumber(own_max_attempts) or tonumber(max_attempts)
    or tonumber(worker_max_attempts)
  if attempt - (tonumber(released) or 0) >= max_attempts then
    end_exhausted_job(job, events, lease, job_id, message_id, attempt, ttl, status)
    acknowledge(group, message_id)
    return { $ANSWER_EXHAUSTED, attempt }
  end
  if running then -- an attempt whose lease expired no longer counts
    redis.call('ZREMRANGEBYSCORE', running, '-inf', now_text)
    if redis.call('ZCARD', running) >= tonumber(max_running) then
      return { $ANSWER_LIMITED }
    end
  end

  redis.call('EXPIRE', job, ttl) -- must come first, see MEMORY in the prelude
  attempt = as_integer(attempt + 1)
  redis.call('HSET', lease,
    $LEASE_ATTEMPT, attempt, $LEASE_TOKEN, token, $LEASE_OWNER, consumer,
    $LEASE_DEADLINE_MS, deadline_after(lease_ms), $LEASE_EVENT_SEQ, '0')
  redis.call('HSET', job, $JOB_STATUS, $STATUS_RUNNING, $JOB_UPDATED_TS, now_text)
  local ok, fault = pcall(append_event, events, $EVENT_TYPE_RUNNING,
    $STEP_WORKER_START, '{"' .. $DATA_ATTEMPT .. '":' .. attempt .. '}')
  if not ok then -- not a stream: the hash must not show a status without its event
    redis.call('HSET', job, $JOB_STATUS, status)
    if held[1] then
      redis.call('HSET', lease, $LEASE_ATTEMPT, held[1], $LEASE_TOKEN, held[2] or '',
        $LEASE_DEADLINE_MS, '0')
    else
      redis.call('DEL', lease)
    end
    error(fault)
  end
  redis.call('EXPIRE', events, ttl)
  redis.call('EXPIRE', lease, ttl)
  if running then
    hold_slot(running, job_id, lease_ms)
  end
  if attempt == '1' then -- a third-party gateway does not write the index
    index_job(job_id)
  end
  hint(job_id)
  if held[1] then
    return { $ANSWER_RUN, attempt, own_max_attempts, released, options }
  end
  return { $ANSWER_RUN, attempt }
end

operations[$OPERATION_BEGIN] = function(key, arg, last, identity, key_count)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, message_id, token, max_attempts, max_running = unpack(ARGV, arg, last)
  local running = key_count == '4' and KEYS[key + 3]
  return begin(identity, job, events, lease, job_id, message_id, token, max_attempts, running,
    max_running)
end
