-- REDRIVE: create a new job from a dead letter and delete the dead letter, both or neither.
--
-- keys  1 job hash   2 events stream   3 lease hash   4 scheduled jobs
--       5 id of the job created from the dead letter
-- args  1 dead letter's id   2 job id, derived from it   3 task   4 payload JSON   5 ttl_s
--       6 delay ms (0 for none)   7 event data JSON   8 max scheduled jobs
--       9 options JSON ('' for none)
-- answers
--   created           the job exists, created now or by an earlier call (lost reply)
--   limited, number   the limit of scheduled jobs is reached
--   missing           the dead letter does not exist (any more)

operations[$OPERATION_REDRIVE] = function(key, arg, last)
  local job, events, lease, scheduled, created_job = unpack(KEYS, key, key + 4)
  local dead_letter_id, job_id, task, payload, ttl_s, delay_ms, data, max_scheduled, options =
    unpack(ARGV, arg, last)
  delay_ms = tonumber(delay_ms)
  if redis.call('HGET', job, $JOB_JOB_ID) then
    return { $ANSWER_CREATED }
  end
  if #redis.call('XRANGE', dead_letters, dead_letter_id, dead_letter_id) == 0 then
    return { $ANSWER_MISSING }
  end
  if delay_ms > 0 then
    local waiting = redis.call('ZCARD', scheduled)
    if waiting >= tonumber(max_scheduled) then
      return { $ANSWER_LIMITED, waiting }
    end
  else
    redis.call('XLEN', queue) -- fails before anything is written if it is not a stream
  end
  if options ~= '' then
    redis.call('HLEN', lease) -- likewise if it is not a hash
  end
  local keep_s = as_integer(ttl_s + math.ceil(delay_ms / 1000))
  accept(job, events, job_id, task, payload, ttl_s, $STEP_GATEWAY_REDRIVE, data, keep_s)
  if options ~= '' then
    redis.call('HSET', lease, $LEASE_ATTEMPT, '0', $LEASE_OPTIONS, options)
    redis.call('EXPIRE', lease, keep_s)
  end
  if delay_ms > 0 then
    schedule(events, scheduled, job_id, delay_ms)
  else
    put_on_queue(job_id, task, payload)
  end
  redis.call('SET', created_job, job_id, 'EX', $TTL_MAX_S)
  redis.call('XDEL', dead_letters, dead_letter_id)
  return { $ANSWER_CREATED }
end
