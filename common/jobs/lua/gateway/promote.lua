-- PROMOTE: a scheduled job is due: put it on the queue, once, whoever asks.
--
-- keys  1 job hash   2 scheduled jobs
--       3 lease hash, then a stream for each lane   (only where there are lanes)
-- args  1 job id     then the lanes' names, in the same order
-- answers
--   ok              on the queue now
--   wait, ms left   not due yet
--   already         somebody else has put it there
--   terminal        it had ended before it was due (canceled): forgotten
--   missing         it had expired or was deleted: forgotten

-- The stream of the lane that its options name; nil for the queue, also where nobody knows better.
local function stream_of(lease, key, arg, last)
  local options = redis.pcall('HGET', lease, $LEASE_OPTIONS)
  local ok, wishes = pcall(cjson.decode, options)
  local lane = ok and type(wishes) == 'table' and wishes[$OPTION_LANE]
  for at = arg + 1, last do
    if ARGV[at] == lane then
      return KEYS[key + 2 + at - arg]
    end
  end
  return nil
end

operations[$OPERATION_PROMOTE] = function(key, arg, last)
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
    local stream = last > arg and stream_of(KEYS[key + 2], key, arg, last) or nil
    put_on_queue(job_id, record[2] or '', record[3] or '', stream)
  end
  redis.call('ZREM', scheduled, job_id)
  return { answer }
end
