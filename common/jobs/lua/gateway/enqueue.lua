-- ENQUEUE: accept a job completely, or change nothing.
--
-- keys  1 job hash   2 events stream
--       3 lease hash, 4 scheduled jobs             (both only with argument 9)
--       5 state of the rate, 6 active jobs of the key   (both only with a limit in 11 to 13)
--       then idempotency key, its fingerprint      (both only with an Idempotency-Key)
-- args  1 job id   2 task   3 payload JSON   4 ttl_s   5 consumer group   6 backlog limit
--       7 idempotency ttl_s   8 request fingerprint ('' without key)
--       and only if the request has options, or the caller has limits:
--       9 delay ms (0 for none)   10 max scheduled jobs
--       11 µs between two jobs of the key (0: no rate)   12 burst
--       13 max unfinished jobs of the key (0: no limit)
--       then `field, value` for the lease hash
-- answers
--   created, job id     written now, or by an earlier call of the same request (lost reply)
--   replayed, job id    the key created this job before
--   conflict, job id    the key was used with another request
--   rate, ms            the key's next job is allowed after this time
--   quota, number       the key may have this many unfinished jobs (PRUNE_QUOTA finds out)
--   full, backlog       backlog (pending + undelivered) has reached the limit
--   limited, number     the limit of scheduled jobs is reached

-- Adds a new message if the one of a job that is to run again was deleted.
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
  local job_id, task, payload, ttl_s, group, limit, key_ttl_s, request_fingerprint =
    unpack(ARGV, arg, arg + 7)
  local has_options = last > arg + 7
  local lease, scheduled, rate, active, reservation, fingerprint
  local delay_ms, max_scheduled, interval_us, burst, max_active = 0, 0, 0, 0, 0
  local at = key + 2
  if has_options then
    lease, scheduled = KEYS[at], KEYS[at + 1]
    delay_ms, max_scheduled, interval_us, burst, max_active = unpack(ARGV, arg + 8, arg + 12)
    delay_ms, max_scheduled = tonumber(delay_ms), tonumber(max_scheduled)
    interval_us, max_active = tonumber(interval_us), tonumber(max_active)
    at = at + 2
    if interval_us > 0 or max_active > 0 then
      rate, active = KEYS[at], KEYS[at + 1]
      at = at + 2
    end
  end
  if request_fingerprint ~= '' then -- otherwise the next keys belong to the next record
    reservation, fingerprint = KEYS[at], KEYS[at + 1]
  end
  limit = tonumber(limit)

  local known = reservation and redis.call('GET', reservation)
  if known and known ~= job_id then
    local known_fingerprint = redis.call('GET', fingerprint)
    if known_fingerprint and known_fingerprint ~= request_fingerprint then
      return { $ANSWER_CONFLICT, known }
    end
    return { $ANSWER_REPLAYED, known }
  end
  if redis.call('HGET', job, $JOB_JOB_ID) then
    return { $ANSWER_CREATED, job_id }
  end

  local wait_us, due, now_us
  if interval_us > 0 then
    wait_us, due, now_us = check_rate(rate, interval_us, burst)
    if wait_us > 0 then
      return { $ANSWER_RATE, math.ceil(wait_us / 1000) }
    end
  end
  if max_active > 0 then
    local count = redis.call('ZCARD', active)
    if count >= max_active then
      return { $ANSWER_QUOTA, count }
    end
  end
  if has_options then
    redis.call('HLEN', lease) -- fails before anything is written if it is not a hash
  end
  if delay_ms > 0 then -- it does not count towards the backlog before it is due
    local waiting = redis.call('ZCARD', scheduled)
    if waiting >= max_scheduled then
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
  accept(job, events, job_id, task, payload, ttl_s, $STEP_GATEWAY_ENQUEUE, '{}', keep_s)
  if last > arg + 12 then
    redis.call('HSET', lease, $LEASE_ATTEMPT, '0', unpack(ARGV, arg + 13, last))
    redis.call('EXPIRE', lease, keep_s)
  end
  if delay_ms > 0 then
    schedule(events, scheduled, job_id, delay_ms)
  else
    put_on_queue(job_id, task, payload)
  end
  if due then -- expires when it no longer matters
    local kept_ms = math.ceil((due - now_us) / 1000) + 1000
    redis.call('SET', rate, as_integer(due), 'PX', as_integer(kept_ms))
  end
  if max_active > 0 then
    redis.call('ZADD', active, now_text, job_id)
    -- A job may be delayed, be queued and run for this long each.
    redis.call('EXPIRE', active, as_integer(3 * $TTL_MAX_S))
  end
  if reservation then
    redis.call('SET', reservation, job_id, 'EX', key_ttl_s)
    redis.call('SET', fingerprint, request_fingerprint, 'EX', key_ttl_s)
  end
  return { $ANSWER_CREATED, job_id }
end
