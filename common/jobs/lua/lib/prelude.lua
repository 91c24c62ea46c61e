-- PRELUDE: shared by all operations. Names such as $STATUS_DONE are rendered from common/contracts
-- as quoted strings before the script is loaded.
--
-- One call carries many records, so that a busy process needs one round trip for all of them:
--   KEYS[1]  counts of jobs               ARGV[1]  hint channel
--   KEYS[2]  queue stream                 ARGV[2]  events kept per job
--   KEYS[3]  dead-letter stream           ARGV[3]  dead letters kept
--   KEYS[4]  index of jobs                ARGV[4]  jobs kept in it
--                                         ARGV[5]  number of identities, then for each its
--                                                  group, consumer, lease ms, default ttl_s and
--                                                  max attempts
--   then, record by record, its keys in KEYS and `operation, identity, key count, argument
--   count, arguments…` in ARGV. The reply is one array per record, starting with an answer.
--
-- An operation is a function of the position of its record: `key` is the index of its first key,
-- `arg` of its first argument, `last` of its last one, `identity` of its identity; `key_count`
-- (text) is its number of keys. (Separate tables would cost more than half of the commands it
-- calls.)

-- MEMORY. When Redis has reached maxmemory, it refuses commands that may need more memory, unless
-- the script has written before. Operations that end, renew or release a job must not be refused,
-- because they free memory. So they start with an EXPIRE, which needs none. Operations that accept
-- new work do not, and pass only if they share a call with one that does.

local operations = {}
local queue, dead_letters = KEYS[2], KEYS[3]
local events_cap, dead_letters_cap = ARGV[2], ARGV[3]
local hinted_jobs = {}
local counted_jobs, indexed_jobs, indexed = {}, {}, 0

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Lua would format a millisecond timestamp as 1.76e+12; and Redis takes three times as long for a
-- number argument as for a string.
local function as_integer(number)
  return string.format('%.0f', number)
end

local now_text = as_integer(now_ms)

local TERMINAL = {
  [$STATUS_DONE] = true,
  [$STATUS_ERROR] = true,
  [$STATUS_CANCELED] = true,
}

-- The reply of an operation that failed.
local function failed(fault)
  return { $ANSWER_FAILED, type(fault) == 'table' and fault['err'] or tostring(fault) }
end

-- When a lease that starts now expires; cached, because all records of a call need the same value.
local deadlines = {}
local function deadline_after(lease_ms)
  local text = deadlines[lease_ms]
  if not text then
    text = as_integer(now_ms + lease_ms)
    deadlines[lease_ms] = text
  end
  return text
end

-- The job's TTL if it is valid, else the caller's default: EXPIRE 0 would delete the job.
local function ttl_seconds(raw, default)
  local ttl = raw and not string.find(raw, '%D') and tonumber(raw)
  if ttl and ttl >= $TTL_MIN_S and ttl <= $TTL_MAX_S then
    return raw
  end
  return default
end

-- True if stream id `left` is older than `right`.
local function older(left, right)
  local left_ms, left_seq = string.match(left, '(%d+)-(%d+)')
  local right_ms, right_seq = string.match(right, '(%d+)-(%d+)')
  left_ms, right_ms = tonumber(left_ms), tonumber(right_ms)
  if left_ms ~= right_ms then
    return left_ms < right_ms
  end
  return tonumber(left_seq) < tonumber(right_seq)
end

local function append_event(events, kind, step, data)
  redis.call('XADD', events, '*',
    $EVENT_TYPE, kind, $EVENT_TS, now_text, $EVENT_STEP, step, $EVENT_DATA, data)
end

-- Collected here, and written once for all records of the call: see DISPATCH.
local function count_job(field)
  counted_jobs[field] = (counted_jobs[field] or 0) + 1
end

-- With the current time as score, unless it is in the index already.
local function index_job(job_id)
  indexed_jobs[indexed + 1], indexed_jobs[indexed + 2] = now_text, job_id
  indexed = indexed + 2
end

local function hint(job_id)
  hinted_jobs[#hinted_jobs + 1] = job_id
end

-- An ended job must have a terminal event before its message is acked. The process that wrote the
-- status may have died before it wrote the event.
local function ensure_terminal_event(events, status, ttl, job_id)
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  if last then
    local fields = last[2]
    for index = 1, #fields, 2 do
      if fields[index] == $EVENT_TYPE and TERMINAL[fields[index + 1]] then
        return
      end
    end
  end
  append_event(events, status, $STEP_WORKER_REPAIR, '{}')
  redis.call('EXPIRE', events, ttl)
  hint(job_id)
end

-- Ends a job whose TTL was refreshed: first the hash, then the terminal event. If the events key is
-- not a stream, the hash is restored: it must not show a status without its event.
local function end_job(job, events, before, status, result, failure, step, data, ttl)
  redis.call('HSET', job, $JOB_STATUS, status, $JOB_UPDATED_TS, now_text,
    $JOB_RESULT, result, $JOB_ERROR, failure)
  local ok, fault = pcall(append_event, events, status, step, data)
  if not ok then
    redis.call('HSET', job, $JOB_STATUS, before, $JOB_RESULT, '', $JOB_ERROR, '')
    error(fault)
  end
  redis.call('EXPIRE', events, ttl)
  count_job(status) -- the counts of endings have the names of the statuses
end

-- Holds a slot among the running jobs of a limited task. If that key has the wrong type, only BEGIN
-- fails, which has to count. Leases differ in length, so the key must outlive the longest.
local function hold_slot(running, job_id, lease_ms)
  local added = redis.pcall('ZADD', running, deadline_after(lease_ms), job_id)
  if type(added) == 'number' and redis.call('PTTL', running) < 2 * lease_ms then
    redis.call('PEXPIRE', running, as_integer(2 * lease_ms))
  end
end

local function free_slot(running, job_id)
  redis.pcall('ZREM', running, job_id)
end

-- If the queue is not a stream any more, there is nothing to acknowledge.
local function acknowledge(group, message_id)
  redis.pcall('XACK', queue, group, message_id)
end

-- Writes a dead letter: the message, the reason, the errors, and the job's options if known.
local function write_dead_letter(message_id, reason, fields, job_id, attempts, first_error,
  last_error, options)
  local more = options and { $DEAD_OPTIONS, options } or {}
  redis.call('XADD', dead_letters, 'MAXLEN', '~', dead_letters_cap, '*',
    $DEAD_REASON, reason, $DEAD_MESSAGE_ID, message_id, $DEAD_TS, now_text,
    $DEAD_FIELDS, fields, $DEAD_JOB_ID, job_id, $DEAD_ATTEMPTS, attempts,
    $DEAD_FIRST_ERROR, first_error, $DEAD_LAST_ERROR, last_error, unpack(more))
end

-- The same for a job whose attempts are used up, from its hash.
local function dead_letter_job(job, lease, job_id, message_id, attempts, failure)
  local original = redis.call('HMGET', job, $JOB_TASK, $JOB_PAYLOAD)
  local fields = cjson.encode({
    [$QUEUE_JOB_ID] = job_id,
    [$QUEUE_TASK] = original[1],
    [$QUEUE_PAYLOAD] = original[2],
  })
  local held = redis.call('HMGET', lease, $LEASE_FIRST_ERROR, $LEASE_OPTIONS)
  -- The job has ended, even if its dead letter cannot be written for lack of memory.
  pcall(write_dead_letter, message_id, $REASON_EXHAUSTED, fields, job_id, attempts,
    held[1] or failure, failure, held[2] or '')
end

-- Appends a handler's events: ARGV[first] to ARGV[last] hold `type, step, data` of each, numbered
-- from `sequence`. A repeat after a lost reply skips events already written. Only handlers can
-- write an unlimited number, so the stream is capped only here.
local function append_numbered(events, first, last, sequence, written)
  for at = first, last, 3 do
    if sequence > written then
      local kind, step, data = unpack(ARGV, at, at + 2)
      redis.call('XADD', events, 'MAXLEN', '~', events_cap, '*',
        $EVENT_TYPE, kind, $EVENT_TS, now_text, $EVENT_STEP, step, $EVENT_DATA, data)
      written = sequence
    end
    sequence = sequence + 1
  end
  return written
end

-- A spent token fences the attempt off, and distinguishes a repeated call from a late one.
local function spent(token)
  return '-' .. token
end

-- Ends the attempt but not the job: no attempt holds it, and its message stays pending.
local function release_attempt(job, events, lease, token, ttl, kind, step, data)
  redis.call('EXPIRE', job, ttl)
  redis.call('HSET', job, $JOB_STATUS, $STATUS_QUEUED, $JOB_UPDATED_TS, now_text)
  local ok, fault = pcall(append_event, events, kind, step, data)
  if not ok then
    redis.call('HSET', job, $JOB_STATUS, $STATUS_RUNNING)
    error(fault)
  end
  redis.call('HSET', lease, $LEASE_TOKEN, spent(token), $LEASE_DEADLINE_MS, '0')
  redis.call('EXPIRE', events, ttl)
  redis.call('EXPIRE', lease, ttl)
end
