-- DEAD_LETTER: write a dead letter for a message without a valid job, then ack it.
--
-- keys  1 job hash   2 events stream   3 lease hash   (only if the message has a valid job id)
-- args  1 consumer group   2 message id   3 reason   4 original fields as JSON
--       5 job id ('' if the message has none)   6 task   7 payload
-- answers
--   ok        copied and acked
--   expired   the same; the message had never been delivered before, so the job expired before it
--             started. A job hash with this error is written, and kept for an hour
--   already   the message was acked before: nothing written

-- The job's own ttl_s is lost; this is long enough for a client to read the error.
local EXPIRED_TTL_S = '3600'

local function record_expired(job, events, job_id, task, payload)
  local failure = cjson.encode({
    [$DATA_KIND] = $ERROR_KIND_EXPIRED,
    [$DATA_MESSAGE] = 'its ttl_s ran out, or its record was deleted, before a worker could start it',
    [$DATA_ATTEMPT] = 0,
  })
  append_event(events, $STATUS_ERROR, $STEP_WORKER_ERROR, failure)
  redis.call('EXPIRE', events, EXPIRED_TTL_S)
  redis.call('HSET', job,
    $JOB_JOB_ID, job_id, $JOB_TASK, task, $JOB_PAYLOAD, payload,
    $JOB_STATUS, $STATUS_ERROR, $JOB_CREATED_TS, now_text, $JOB_UPDATED_TS, now_text,
    $JOB_TTL_S, EXPIRED_TTL_S, $JOB_RESULT, '', $JOB_ERROR, failure)
  redis.call('EXPIRE', job, EXPIRED_TTL_S)
  count_job($COUNT_ERROR)
  index_job(job_id)
  hint(job_id)
end

-- The options in the lease; false if the lease no longer exists.
local function known_options(lease)
  local held = redis.pcall('HMGET', lease, $LEASE_ATTEMPT, $LEASE_OPTIONS)
  if held['err'] or not held[1] then
    return false
  end
  return held[2] or ''
end

operations[$OPERATION_DEAD_LETTER] = function(key, arg, last, _, key_count)
  local group, message_id, reason, fields, job_id, task, payload = unpack(ARGV, arg, last)
  local pending = redis.call('XPENDING', queue, group, message_id, message_id, 1)[1]
  if not pending then
    return { $ANSWER_ALREADY }
  end
  -- A message in a wait queue was passed from worker to worker without being begun.
  local waited = string.sub(pending[2], 1, #$WAIT_QUEUE_PREFIX) == $WAIT_QUEUE_PREFIX
  local never_started = reason == $REASON_NO_JOB and (pending[4] == 1 or waited)
    and key_count == '3'
    and redis.call('EXISTS', KEYS[key], KEYS[key + 1]) == 0
  write_dead_letter(message_id, never_started and $REASON_EXPIRED or reason, fields, job_id, '0',
    '', '', key_count == '3' and known_options(KEYS[key + 2]))
  if never_started then
    record_expired(KEYS[key], KEYS[key + 1], job_id, task, payload)
  end
  redis.call('XACK', queue, group, message_id)
  return { never_started and $ANSWER_EXPIRED or $ANSWER_OK }
end
