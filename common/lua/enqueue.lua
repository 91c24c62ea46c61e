-- ENQUEUE: accept a job whole, or change nothing.
--
-- keys  1 job hash   2 events stream
--       3 lease hash, 4 scheduled jobs             (both only with argument 9)
--       then idempotency key, its fingerprint      (both only with an Idempotency-Key)
-- args  1 job id   2 task   3 payload JSON   4 ttl_s   5 consumer group   6 backlog limit
--       7 idempotency ttl_s   8 request fingerprint ('' without key)
--       and only where the request has wishes of its own:
--       9 delay ms (0 for none)   10 most scheduled jobs   11 `queued` event's step
--       12 its data JSON   then `field, value` for the lease hash
-- answers
--   created, job id     written now, or by an earlier call of this very request (lost reply)
--   replayed, job id    the key made this job before
--   conflict, job id    the key was used with another request
--   full, backlog       backlog (pending + undelivered) has reached the limit
--   limited, number     as many jobs are scheduled as may be

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

-- Accepts a job that is on no queue yet; the caller has made sure that there is room.
local function accept(job, events, job_id, task, payload, ttl_s, step, data, keep_s)
  redis.call('HSET', job,
    $JOB_JOB_ID, job_id, $JOB_TASK, task, $JOB_PAYLOAD, payload,
    $JOB_STATUS, $STATUS_QUEUED, $JOB_CREATED_TS, now_text, $JOB_UPDATED_TS, now_text,
    $JOB_TTL_S, ttl_s, $JOB_RESULT, '', $JOB_ERROR, '')
  redis.call('EXPIRE', job, keep_s)
  local ok, fault = pcall(append_event, events, $EVENT_TYPE_QUEUED, step, data)
  if not ok then
    redis.call('DEL', job)
    error(fault)
  end
  redis.call('EXPIRE', events, keep_s)
end

local function put_on_queue(job_id, task, payload)
  return redis.call('XADD', queue, '*',
    $QUEUE_JOB_ID, job_id, $QUEUE_TASK, task, $QUEUE_PAYLOAD, payload)
end

-- Somebody deleted the message of a job that is to run again: without one it never would.
local function renew_message(job, job_id, group, message_id)
  local found = redis.pcall('XRANGE', queue, message_id, message_id)
  if found['err'] or #found > 0 then
    return message_id
  end
  local original = redis.call('HMGET', job, $JOB_TASK, $JOB_PAYLOAD)
  acknowledge(group, message_id)
  return put_on_queue(job_id, original[1] or '', original[2] or '')
end

local function schedule(events, scheduled, job_id, delay_ms)
  local due = as_integer(now_ms + delay_ms)
  redis.call('ZADD', scheduled, due, job_id)
  append_event(events, $EVENT_TYPE_SCHEDULED, $STEP_GATEWAY_SCHEDULE, '{"' .. $DATA_RUN_AT_MS .. '":' .. due .. '}')
end

operations[$OPERATION_ENQUEUE] = function(key, arg, last)
  local job, events = KEYS[key], KEYS[key + 1]
  local job_id, task, payload, ttl_s, group, limit, key_ttl_s, print =
    unpack(ARGV, arg, arg + 7)
  local wishes = last > arg + 7
  local lease, scheduled, reservation, fingerprint
  if print ~= '' then -- else what lies there is the next record's
    local at = wishes and key + 4 or key + 2
    reservation, fingerprint = KEYS[at], KEYS[at + 1]
  end
  limit = tonumber(limit)

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

  local delay_ms, most_scheduled, step, data = 0, 0, $STEP_GATEWAY_ENQUEUE, '{}'
  if wishes then
    lease, scheduled = KEYS[key + 2], KEYS[key + 3]
    delay_ms, most_scheduled, step, data = unpack(ARGV, arg + 8, arg + 11)
    delay_ms, most_scheduled = tonumber(delay_ms), tonumber(most_scheduled)
    redis.call('HLEN', lease) -- fails before anything is written, if it is no hash
  end
  if delay_ms > 0 then -- on the queue it will be when it is due, however long that is
    local waiting = redis.call('ZCARD', scheduled)
    if waiting >= most_scheduled then
      return { $ANSWER_LIMITED, waiting }
    end
  else
    local backlog = backlog_of(group, limit)
    if backlog >= limit then
      return { $ANSWER_FULL, backlog }
    end
  end

  local keep_s = ttl_s
  if delay_ms > 0 then
    keep_s = as_integer(ttl_s + math.ceil(delay_ms / 1000))
  end
  accept(job, events, job_id, task, payload, ttl_s, step, data, keep_s)
  if wishes and last > arg + 11 then
    redis.call('HSET', lease, $LEASE_ATTEMPT, '0', unpack(ARGV, arg + 12, last))
    redis.call('EXPIRE', lease, keep_s)
  end
  if delay_ms > 0 then
    schedule(events, scheduled, job_id, delay_ms)
  else
    put_on_queue(job_id, task, payload)
  end
  if reservation then
    redis.call('SET', reservation, job_id, 'EX', key_ttl_s)
    redis.call('SET', fingerprint, print, 'EX', key_ttl_s)
  end
  return { $ANSWER_CREATED, job_id }
end
