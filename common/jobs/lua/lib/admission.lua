-- ADMISSION: shared by the scripts of features that create core jobs: whether one may be created
-- now, how it is created, and which attempt of it is current. Part of the workflow and image
-- scripts, not of the job script. Each defines its own answers and facts: a reply is built by
-- `found($FOUND_OK, { [$FACT_JOB_ID] = … })`.

-- The prefix of the key names of the queue's partition; empty with one partition. Keys that a
-- script derives from an id begin with it, so that all of them are in the slot of the queue.
local tag = string.match(queue, '^{%d+}:') or ''

local function found(answer, facts)
  return { $ANSWER_OK, answer, facts and cjson.encode(facts) or '{}' }
end

-- Fails unless the key does not exist or has this type.
local function must_be(name, kind)
  local is = redis.call('TYPE', name)
  is = type(is) == 'table' and is['ok'] or is
  if is ~= kind and is ~= 'none' then
    error('WRONGTYPE ' .. name .. ' is a ' .. tostring(is) .. ', not a ' .. kind)
  end
end

-- Fails if the queue is not a stream, or the keys of the core job exist.
local function check_core_job(core_job)
  must_be(queue, 'stream')
  local record = tag .. $CORE_JOB .. core_job
  for _, name in ipairs({ record, record .. $CORE_EVENTS, record .. $CORE_LEASE }) do
    must_be(name, 'none')
  end
end

-- Accepts a core job that calls a tool, as ENQUEUE does. `max_attempts` is nil for the default.
local function accept_core_job(core_job, payload, ttl_s, max_attempts, options)
  local record = tag .. $CORE_JOB .. core_job
  local lease = record .. $CORE_LEASE
  accept(record, record .. $CORE_EVENTS, core_job, $TASK_TOOL, payload, ttl_s,
    $STEP_GATEWAY_ENQUEUE, '{}', ttl_s)
  local held = { $LEASE_ATTEMPT, '0' }
  if max_attempts then
    held[#held + 1] = $LEASE_MAX_ATTEMPTS
    held[#held + 1] = as_integer(max_attempts)
  end
  if next(options) then
    held[#held + 1] = $LEASE_OPTIONS
    held[#held + 1] = cjson.encode(options)
  end
  redis.call('HSET', lease, unpack(held))
  redis.call('EXPIRE', lease, ttl_s)
  put_on_queue(core_job, $TASK_TOOL, payload)
end

-- True if `{lease, attempt, token}` is still the current attempt of the core job. Repairs have no
-- attempt, and pass an empty lease.
local function is_held(running)
  if running.lease == '' then
    return true
  end
  local held = redis.call('HMGET', running.lease, $LEASE_ATTEMPT, $LEASE_TOKEN)
  return held[1] == running.attempt and held[2] == running.token
end

-- The admission limits of a request: `{group, limit, interval_us, burst, max_active, rate,
-- active}`. The store sends five arguments and, if the caller has limits, two keys after `own` (1)
-- others.
local function admission_at(key, key_count, arg, own)
  own = own or 1
  local limited = tonumber(key_count) > own
  return {
    group = ARGV[arg], limit = tonumber(ARGV[arg + 1]), interval_us = tonumber(ARGV[arg + 2]),
    burst = tonumber(ARGV[arg + 3]), max_active = tonumber(ARGV[arg + 4]),
    rate = limited and KEYS[key + own], active = limited and KEYS[key + own + 1],
  }
end

-- The answer that refuses a request, or nil. `starts`: whether it would put a job on the queue.
local function refusal_of(admission, starts)
  if admission.rate and admission.interval_us > 0 then
    local wait_us, due, now_us = check_rate(admission.rate, admission.interval_us, admission.burst)
    if wait_us > 0 then
      return found($FOUND_RATE, { [$FACT_WAIT_MS] = math.ceil(wait_us / 1000) })
    end
    admission.due, admission.kept_ms = due, math.ceil((due - now_us) / 1000) + 1000
  end
  if admission.active and admission.max_active > 0 then
    local count = redis.call('ZCARD', admission.active)
    if starts and count >= admission.max_active then
      return found($FOUND_QUOTA, { [$FACT_ACTIVE] = count })
    end
  end
  if starts then
    local backlog = backlog_of(admission.group, admission.limit)
    if backlog >= admission.limit then
      return found($FOUND_FULL, { [$FACT_BACKLOG] = backlog })
    end
  end
  return nil
end

-- Records that the request was admitted, and the core job that it started, if any.
local function admit(admission, core_job)
  if admission.due then
    redis.call('SET', admission.rate, as_integer(admission.due), 'PX', as_integer(admission.kept_ms))
  end
  if core_job and admission.active and admission.max_active > 0 then
    redis.call('ZADD', admission.active, now_text, core_job)
    redis.call('EXPIRE', admission.active, as_integer(3 * $TTL_MAX_S))
  end
end
