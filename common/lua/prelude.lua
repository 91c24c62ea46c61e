-- PRELUDE: what every operation shares. Names such as $STATUS_DONE are rendered from
-- common/contracts as quoted strings before the script is loaded.
--
-- One call carries many records, so that a busy process pays one round trip for all of them:
--   KEYS[1]  counter of finished jobs          ARGV[1]  hint channel
--   then, record by record, its keys in KEYS and `operation, key count, argument count,
--   arguments…` in ARGV. The reply is one array per record, headed by an answer.

local operations = {}
local hinted_jobs = {}
local finished_jobs = 0

local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Lua would print a millisecond timestamp as 1.76e+12; and Redis takes three times as long for
-- an argument that is a number as for one that is a string.
local function as_integer(number)
  return string.format('%.0f', number)
end

local now_text = as_integer(now_ms)

local TERMINAL = {
  [$STATUS_DONE] = true,
  [$STATUS_ERROR] = true,
  [$STATUS_CANCELED] = true,
}

-- The job's own TTL where it is sane, else the caller's default: EXPIRE 0 would delete the job.
local function ttl_seconds(raw, default)
  local ttl = tonumber(raw)
  if ttl and ttl >= $TTL_MIN_S and ttl <= $TTL_MAX_S and ttl == math.floor(ttl) then
    return as_integer(ttl)
  end
  return default
end

local function append_event(events, cap, kind, step, data)
  redis.call('XADD', events, 'MAXLEN', '~', cap, '*',
    $EVENT_TYPE, kind, $EVENT_TS, now_text, $EVENT_STEP, step, $EVENT_DATA, data)
end

-- The contract wants the hash written before its event. Where the events key turns out to be
-- something else than a stream, the hash must not keep what no event tells.
local function append_event_or_undo(undo, ...)
  local ok, message = pcall(append_event, ...)
  if not ok then
    undo()
    error(message)
  end
end

local function hint(job_id)
  hinted_jobs[#hinted_jobs + 1] = job_id
end

-- Appends the handler's events `type, step, data` that start at args[first] and are numbered
-- from `sequence`. A repeat after a lost reply skips what is already there.
local function append_numbered(events, cap, args, first, sequence, written)
  local count = math.floor((#args - first + 1) / 3)
  for index = 0, count - 1 do
    if sequence + index > written then
      local at = first + index * 3
      append_event(events, cap, args[at], args[at + 1], args[at + 2])
    end
  end
  return count > 0 and sequence + count - 1 or written
end
