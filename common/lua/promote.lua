-- PROMOTE: a scheduled job is due: put it on the queue, once, whoever asks.
--
-- keys  1 job hash   2 scheduled jobs
-- args  1 job id
-- answers
--   ok              on the queue now
--   wait, ms left   not due yet
--   already         somebody else has put it there
--   terminal        it had ended before it was due (canceled): forgotten
--   missing         it had expired or was deleted: forgotten

operations[$OPERATION_PROMOTE] = function(key, arg)
  local job, scheduled = KEYS[key], KEYS[key + 1]
  local job_id = ARGV[arg]
  local due = tonumber(redis.call('ZSCORE', scheduled, job_id))
  if not due then
    return { $ANSWER_ALREADY }
  end
  if due > now_ms then
    return { $ANSWER_WAIT, due - now_ms }
  end
  -- What is no hash is no job any more, and must not stand in the way of others.
  local record = redis.pcall('HMGET', job, $JOB_STATUS, $JOB_TASK, $JOB_PAYLOAD)
  local answer = $ANSWER_OK
  if not record[1] then
    answer = $ANSWER_MISSING
  elseif record[1] ~= $STATUS_QUEUED then
    answer = $ANSWER_TERMINAL
  else
    put_on_queue(job_id, record[2] or '', record[3] or '')
  end
  redis.call('ZREM', scheduled, job_id)
  return { answer }
end
