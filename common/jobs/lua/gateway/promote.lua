-- PROMOTE: put a scheduled job that is due on the queue, once, however many processes try.
--
-- keys  1 job hash   2 scheduled jobs
--       3 lease hash, then a stream for each lane   (only if there are lanes)
-- args  1 job id     then the lanes' names, in the same order
-- answers
--   ok              on the queue now
--   wait, ms left   not due yet
--   already         another process has put it there
--   terminal        it ended before it was due (canceled): removed from the schedule
--   missing         it expired or was deleted: removed from the schedule

-- The stream of the lane in the job's options; nil for the normal queue, also if unknown.
local function stream_of(lease, key, arg, last)
  local options = redis.pcall('HGET', lease, $LEASE_OPTIONS)
  local ok, decoded = pcall(cjson.decode, options)
  local lane = ok and type(decoded) == 'table' and decoded[$OPTION_LANE]
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
  -- A key that is not a hash is not a job any more, and must not block others.
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
