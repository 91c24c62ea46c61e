-- ENQUEUE: accept a job whole, or change nothing.
--
-- keys  1 job hash   2 events stream
--       3 idempotency key, 4 its fingerprint   (both only with an Idempotency-Key)
-- args  1 job id   2 task   3 payload JSON   4 ttl_s   5 consumer group   6 backlog limit
--       7 idempotency ttl_s   8 request fingerprint ('' without key)
-- answers
--   created, job id     written now, or by an earlier call of this very request (lost reply)
--   replayed, job id    the key made this job before
--   conflict, job id    the key was used with another request
--   full, backlog       backlog (pending + undelivered) has reached the limit

-- How many entries the group has not been given yet. Redis 7 knows (lag); before that, and
-- where deletions made it unsure, count the *delivered* entries still in the stream, which
-- trimming keeps few, and no further than the answer needs.
local function undelivered(group, length, pending, limit)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', queue)) do
    local fields = {}
    for index = 1, #info, 2 do
      fields[info[index]] = info[index + 1]
    end
    if fields['name'] == group then
      if type(fields['lag']) == 'number' then
        return fields['lag']
      end
      local last = fields['last-delivered-id']
      local enough = math.max(length + pending - limit + 1, 1)
      return length - #redis.call('XRANGE', queue, '-', last, 'COUNT', enough)
    end
  end
  return length
end

local function backlog_of(group, limit)
  local length = redis.call('XLEN', queue)
  local summary = redis.pcall('XPENDING', queue, group)
  if summary['err'] then
    return length -- no group yet: nothing was delivered
  end
  local pending = tonumber(summary[1])
  if pending + length < limit then
    return pending + length -- an upper bound, and already low enough
  end
  return pending + undelivered(group, length, pending, limit)
end

operations[$OPERATION_ENQUEUE] = function(key, arg)
  local job, events, reservation, fingerprint = unpack(KEYS, key, key + 3)
  local job_id, task, payload, ttl_s, group, limit, key_ttl_s, print =
    unpack(ARGV, arg, arg + 7)
  limit = tonumber(limit)
  if print == '' then
    reservation = nil -- no Idempotency-Key: what lies there is the next record's
  end

  local known = reservation and redis.call('GET', reservation)
  if known and known ~= job_id then
    local known_print = redis.call('GET', fingerprint)
    if known_print and known_print ~= print then
      return { $ANSWER_CONFLICT, known }
    end
    return { $ANSWER_REPLAYED, known }
  end
  if redis.call('HGET', job, $JOB_JOB_ID) then
    return { $ANSWER_CREATED, job_id }
  end

  local backlog = backlog_of(group, limit)
  if backlog >= limit then
    return { $ANSWER_FULL, backlog }
  end

  redis.call('HSET', job,
    $JOB_JOB_ID, job_id, $JOB_TASK, task, $JOB_PAYLOAD, payload,
    $JOB_STATUS, $STATUS_QUEUED, $JOB_CREATED_TS, now_text, $JOB_UPDATED_TS, now_text,
    $JOB_TTL_S, ttl_s, $JOB_RESULT, '', $JOB_ERROR, '')
  redis.call('EXPIRE', job, ttl_s)
  local ok, fault = pcall(append_event, events, $EVENT_TYPE_QUEUED,
    $STEP_GATEWAY_ENQUEUE, '{}')
  if not ok then
    redis.call('DEL', job)
    error(fault)
  end
  redis.call('EXPIRE', events, ttl_s)
  redis.call('XADD', queue, '*',
    $QUEUE_JOB_ID, job_id, $QUEUE_TASK, task, $QUEUE_PAYLOAD, payload)
  if reservation then
    redis.call('SET', reservation, job_id, 'EX', key_ttl_s)
    redis.call('SET', fingerprint, print, 'EX', key_ttl_s)
  end
  return { $ANSWER_CREATED, job_id }
end
