-- CANCEL: end a job that nobody runs, or ask for the end of one that somebody runs.
--
-- keys  1 job hash   2 events stream   3 lease hash   4 scheduled jobs
-- args  1 job id   2 consumer group   3 control channel   4 event data JSON   5 default ttl_s
-- answers
--   canceled          nobody ran it: it has ended, `canceled` is written
--   canceling         somebody runs it: the wish is noted and made known, `canceling` is written
--                     once; also when it was noted before
--   already, status   it had ended before
--   missing           no such job

local function is_in_lane(options)
  local ok, wishes = pcall(cjson.decode, options)
  return ok and type(wishes) == 'table' and wishes[$OPTION_LANE]
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

  -- Also where the lease has run out: a worker that knows nothing of leases may have taken the job
  -- up, and may end it at any time. If nobody has, it ends when it is claimed.
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
  redis.pcall('ZREM', scheduled, job_id) -- it has ended, whatever that key is
  -- In another lane that name may be another job's; there, whoever claims the message acks it.
  if held[2] and not is_in_lane(held[3]) then
    acknowledge(group, held[2])
  end
  hint(job_id)
  return { $ANSWER_CANCELED }
end
