-- CANCEL: end a job that is not running, or request the end of one that is.
--
-- keys  1 job hash   2 events stream   3 lease hash   4 scheduled jobs
-- args  1 job id   2 consumer group   3 control channel   4 event data JSON   5 default ttl_s
-- answers
--   canceled          it was not running: it has ended, `canceled` is written
--   canceling         it is running: the request is stored and published, `canceling` is written
--                     once; also if it was requested before
--   already, status   it had ended before
--   missing           no such job

local function is_in_lane(options)
  local ok, decoded = pcall(cjson.decode, options)
  return ok and type(decoded) == 'table' and decoded[$OPTION_LANE]
end

operations[$OPERATION_CANCEL] = function(key, arg, last)
  local job, events, lease, scheduled = unpack(KEYS, key, key + 3)
  local job_id, group, control, data, default_ttl = unpack(ARGV, arg, last)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  local status, ttl = record[1], ttl_seconds(record[2], default_ttl)
  if not status then
    return { $ANSWER_MISSING }
  end
  if TERMINAL[status] then
    return { $ANSWER_ALREADY, status }
  end
  local held = redis.call('HMGET', lease, $LEASE_CANCEL_MS, $LEASE_MESSAGE_ID, $LEASE_OPTIONS)

  -- Also if the lease has expired: a third-party worker without leases may have claimed the job,
  -- and may end it at any time. If no worker has, it ends when the next one claims it.
  if status == $STATUS_RUNNING then
    if not held[1] then
      redis.call('EXPIRE', job, ttl)
      append_event(events, $EVENT_TYPE_CANCELING, $STEP_GATEWAY_CANCEL, data)
      redis.call('HSET', lease, $LEASE_CANCEL_MS, now_text)
      redis.call('HSETNX', lease, $LEASE_ATTEMPT, '0')
      redis.call('EXPIRE', events, ttl)
      redis.call('EXPIRE', lease, ttl)
      hint(job_id)
    end
    redis.call('PUBLISH', control, job_id)
    return { $ANSWER_CANCELING }
  end

  redis.call('EXPIRE', job, ttl)
  end_job(job, events, status, $STATUS_CANCELED, '', '', $STEP_GATEWAY_CANCEL, data, ttl)
  redis.call('DEL', lease)
  redis.pcall('ZREM', scheduled, job_id) -- the job has ended, even if that key is corrupt
  -- In another lane the same id may be another message; the worker that claims this one acks it.
  if held[2] and not is_in_lane(held[3]) then
    acknowledge(group, held[2])
  end
  hint(job_id)
  return { $ANSWER_CANCELED }
end
