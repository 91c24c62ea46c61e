-- STATE: a workflow job in the scripts. Its keys are derived from its id here, since CREATE assigns
-- the id itself; their names are rendered from WorkflowKeys.
--
-- An operation reads and checks first, then writes: a script is not rolled back. `load_job` fails
-- if a key of the job has the wrong type, before anything is written.
--
-- An operation that ends work calls `end_work(job)` before its first write, one that begins work
-- `begin_work(job)` (see MEMORY in the prelude); each ends with `save(job)`.
--
-- A reply is built by `found($FOUND_OK, { [$FACT_STEP] = … })` (see
-- common/jobs/lua/lib/admission.lua), a refusal by `refuse(code, facts)`.

-- Keys shared by all jobs, and prefixes of those that end with an id or a day.
local names = {
  job = tag .. $KEY_JOB, sequence = tag .. $KEY_SEQUENCE, index = tag .. $KEY_INDEX,
  running = tag .. $KEY_RUNNING, reviews = tag .. $KEY_REVIEWS,
  jobs_with_effects = tag .. $KEY_UNSETTLED,
  deliveries = tag .. $KEY_DELIVERIES, wake = tag .. $KEY_WAKE, delivery = tag .. $KEY_DELIVERY,
  dead_deliveries = tag .. $KEY_DEAD_DELIVERIES, dead_letter_states = tag .. $KEY_LETTERS,
  redrives = tag .. $KEY_REDRIVES,
}
local GLOBAL_KINDS = {
  [names.running] = 'hash', [names.reviews] = 'zset', [names.deliveries] = 'zset',
}
local JOB_KINDS = {
  [$KEY_STEPS] = 'hash', [$KEY_ITEMS] = 'hash', [$KEY_STATES] = 'hash', [$KEY_ORDER] = 'zset',
  [$KEY_EVENTS] = 'stream', [$KEY_UNDO] = 'list', [$KEY_OPERATIONS] = 'hash',
  [$KEY_UNDOABLE] = 'hash', [$KEY_DATA] = 'hash', [$KEY_PARTS] = 'hash', [$KEY_OUTBOX] = 'list',
}
-- Maximum number of arguments per command: Redis and Lua's stack are limited.
local MAX_BATCH = 1000

local function refuse(code, facts)
  facts = facts or {}
  facts[$FACT_CODE] = code
  return found($FOUND_REFUSED, facts)
end

-- A definition, decoded once per call however many jobs use it.
local declarations = {}
local function declaration_of(raw)
  local known = declarations[raw]
  if not known then
    local definition = cjson.decode(raw)
    known = { definition = definition, names = {}, index = {}, by_prefix = {} }
    for at, step in ipairs(definition[$DEFINITION_STEPS]) do
      local name = step[$DEFINITION_NAME]
      known.names[at] = name
      known.index[name] = at
      known.by_prefix[step[$DEFINITION_PREFIX]] = step
    end
    declarations[raw] = known
  end
  return known
end

-- The job as a table of functions over its two hashes. Reads are cached, and `save` writes changes.
local function job_of(id)
  local job = { id = id, record = names.job .. id }
  local prefix = job.record .. ':'
  local steps = prefix .. $KEY_STEPS
  local values, step_values = {}, {}
  job.changed, job.changed_steps = {}, {}

  -- `job.key($KEY_ITEMS)`; the record itself is `job.record`.
  function job.key(name)
    return prefix .. name
  end

  function job.order_of(step)
    return prefix .. $KEY_ORDER .. ':' .. step
  end

  -- All keys except the record.
  function job.keys()
    local keys = {}
    for name in pairs(JOB_KINDS) do
      keys[#keys + 1] = prefix .. name
    end
    for _, step in ipairs(job.step_names) do
      keys[#keys + 1] = job.order_of(step)
    end
    return keys
  end

  -- Text; empty if the field does not exist.
  function job.get(field)
    local value = values[field]
    if value == nil then
      value = redis.call('HGET', job.record, field) or ''
      values[field] = value
    end
    return value
  end

  function job.number(field)
    return tonumber(job.get(field)) or 0
  end

  function job.set(field, value)
    if type(value) == 'number' then
      value = as_integer(value)
    end
    if values[field] ~= value then
      values[field] = value
      job.changed[field] = value
    end
  end

  function job.step(name, field)
    local at = name .. '.' .. field
    local value = step_values[at]
    if value == nil then
      value = redis.call('HGET', steps, at) or ''
      step_values[at] = value
    end
    return value
  end

  function job.set_step(name, field, value)
    if type(value) == 'number' then
      value = as_integer(value)
    end
    local at = name .. '.' .. field
    step_values[at] = value
    job.changed_steps[at] = value
  end

  -- Uses a definition (raw JSON).
  function job.use_definition(raw)
    local known = declaration_of(raw)
    job.definition, job.step_names = known.definition, known.names
    job.index, job.by_prefix = known.index, known.by_prefix
  end

  function job.index_of(step)
    return job.index[step]
  end

  -- The definition of a step, by number or name.
  function job.step_at(at)
    return job.definition[$DEFINITION_STEPS][job.index[at] or at]
  end

  function job.step_of_item(item_id)
    return job.by_prefix[string.match(item_id, '^(.*)_%d+$') or '']
  end

  -- The lifetime after the last change; the stored value may be invalid.
  function job.ttl_s()
    local raw = job.get($RECORD_TTL_S)
    local ttl = not string.find(raw, '%D') and tonumber(raw)
    if ttl and ttl >= 1 and ttl <= $LONGEST_TTL_S then
      return raw
    end
    return '$TTL_MAX_S'
  end

  return job
end

local function check_globals()
  for name, kind in pairs(GLOBAL_KINDS) do
    must_be(name, kind)
  end
end

local function check_keys(job)
  check_globals()
  for name, kind in pairs(JOB_KINDS) do
    must_be(job.key(name), kind)
  end
  for _, name in ipairs(job.step_names) do
    must_be(job.order_of(name), 'zset')
  end
end

-- nil if the job does not exist.
local function load_job(id)
  local job = job_of(id)
  local definition = redis.call('HGET', job.record, $RECORD_DEFINITION)
  if not definition then
    return nil
  end
  job.use_definition(definition)
  check_keys(job)
  return job
end

-- The first write: one that Redis accepts without memory, and one that it refuses.
local function end_work(job)
  redis.call('EXPIRE', job.record, job.ttl_s())
end

local function begin_work(job)
  redis.call('HSET', job.record, $RECORD_UPDATED_MS, now_text)
end

-- Events that are not delivered while a receiver has too large a backlog.
local LOG_ONLY = {
  [$WF_EVENT_STEP_PROGRESS] = true, [$WF_EVENT_STEP_RESET] = true,
  [$WF_EVENT_ITEM_CHANGED] = true, [$WF_EVENT_UNDO_APPLIED] = true,
}
local woken = false

-- Adds an event to the webhook's outbox, if there is a webhook that subscribed to it.
local function add_to_outbox(job, kind, seq, data)
  local subscribed = ' ' .. job.get($RECORD_WEBHOOK_EVENTS) .. ' '
  if job.get($RECORD_WEBHOOK_URL) == ''
    or not string.find(subscribed, ' ' .. kind .. ' ', 1, true) then
    return
  end
  if LOG_ONLY[kind] and redis.call('LLEN', job.key($KEY_OUTBOX)) >= $MOST_UNSENT then
    return
  end
  redis.call('RPUSH', job.key($KEY_OUTBOX), cjson.encode({
    [$OUTBOX_SEQ] = seq, [$OUTBOX_TYPE] = kind, [$OUTBOX_TS] = now_ms,
    [$OUTBOX_STATUS] = job.get($RECORD_STATUS),
    [$OUTBOX_CURRENT_STEP] = job.get($RECORD_CURRENT_STEP),
    [$OUTBOX_DATA] = data,
  }))
  -- If the first entry of an outbox waits for a retry, the outbox does not become due earlier.
  redis.call('ZADD', names.deliveries, 'NX', now_text, job.id)
  if not woken then
    redis.pcall('PUBLISH', names.wake, job.id)
    woken = true
  end
end

-- Appends an event. It shows the job's current status and step: set those first.
local function emit_event(job, kind, step, data)
  local seq = job.number($RECORD_EVENT_SEQ) + 1
  job.set($RECORD_EVENT_SEQ, seq)
  redis.call('XADD', job.key($KEY_EVENTS), 'MAXLEN', '~', '$EVENTS_KEPT', as_integer(seq) .. '-0',
    $EVENT_TYPE, kind, $EVENT_TS, now_text, $EVENT_STEP, step, $EVENT_DATA, data)
  add_to_outbox(job, kind, seq, data)
  if not job.hinted then
    hint(job.id)
    job.hinted = true
  end
end

local function flat(changed)
  local fields = {}
  for field, value in pairs(changed) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  return fields
end

-- Writes all changes. All keys of a job expire together.
local function save(job)
  job.set($RECORD_UPDATED_MS, now_text)
  local fields = flat(job.changed)
  redis.call('HSET', job.record, unpack(fields))
  fields = flat(job.changed_steps)
  if #fields > 0 then
    redis.call('HSET', job.key($KEY_STEPS), unpack(fields))
  end
  job.changed, job.changed_steps = {}, {}
  local ttl = job.ttl_s()
  redis.call('EXPIRE', job.record, ttl)
  for _, name in ipairs(job.keys()) do
    redis.call('EXPIRE', name, ttl)
  end
end

-- ONCE: the idempotency claim of a request, `{key, fingerprint, ttl_s, claim_ms, token}`: one key
-- and four arguments of the store.
local function once_at(key, arg)
  return {
    key = KEYS[key], fingerprint = ARGV[arg], ttl_s = ARGV[arg + 1],
    claim_ms = tonumber(ARGV[arg + 2]), token = ARGV[arg + 3],
  }
end

-- The reply to an earlier call of the request, or nil: its outcome, '1' unless it is the same call
-- (lost reply), how long the first request may still be in progress, and the stored answer if any.
local function replay(once)
  local kept = redis.call('HMGET', once.key, $REMEMBERED_FINGERPRINT, $REMEMBERED_OUTCOME,
    $REMEMBERED_TOKEN, $REMEMBERED_CLAIMED_UNTIL_MS, $REMEMBERED_STATUS_CODE, $REMEMBERED_BODY)
  if not kept[1] then
    return nil
  end
  if kept[1] ~= once.fingerprint then
    return found($FOUND_REUSED)
  end
  local answer, facts = string.match(kept[2] or '', '^(%S+) (.*)$')
  local claimed_ms = math.max((tonumber(kept[4]) or 0) - now_ms, 0)
  return { $ANSWER_OK, answer or $FOUND_OK, facts or '{}', kept[3] == once.token and '' or '1',
    as_integer(claimed_ms), kept[5] or '', kept[6] or '' }
end

-- The job of a request; or nil, and the reply: that to an earlier call, or that the job does not
-- exist. A worker's request has no `once`.
local function job_for(once, id)
  local reply = once and replay(once)
  if reply then
    return nil, reply
  end
  local job = load_job(id)
  if not job then
    return nil, found($FOUND_MISSING, { [$FACT_WHAT] = $CODE_NOT_FOUND })
  end
  return job
end

-- Stores a reply built by `found`, and returns it: `return keep(once, found(…))`.
local function keep(once, reply)
  redis.call('HSET', once.key, $REMEMBERED_FINGERPRINT, once.fingerprint,
    $REMEMBERED_OUTCOME, reply[2] .. ' ' .. reply[3], $REMEMBERED_TOKEN, once.token,
    $REMEMBERED_CLAIMED_UNTIL_MS, as_integer(now_ms + once.claim_ms))
  redis.call('EXPIRE', once.key, once.ttl_s)
  return reply
end

-- ITEMS: a payload that no script parses, and separately `status version edited confidence`.

local function encode_state(state)
  return state.status .. ' ' .. as_integer(state.version) .. ' ' .. (state.edited and '1' or '0')
    .. ' ' .. state.confidence
end

local function decode_state(raw)
  local status, version, edited, confidence = string.match(raw, '^(%S+) (%d+) (%d) (%S+)$')
  if not status then
    error('the state of an item is no state: ' .. raw)
  end
  return { status = status, version = tonumber(version), edited = edited == '1', confidence = confidence }
end

-- nil if the item does not exist. `confidence` is text.
local function read_item(job, id)
  local raw = redis.call('HGET', job.key($KEY_STATES), id)
  return raw and decode_state(raw) or nil
end

local COUNTED = {
  [$ITEM_PROPOSED] = $RECORD_PROPOSED,
  [$ITEM_APPROVED] = $RECORD_APPROVED,
  [$ITEM_REJECTED] = $RECORD_REJECTED,
  [$ITEM_APPLIED] = $RECORD_APPLIED,
}

-- True if it is an unapplied change.
local function is_pending(state)
  return state.status == $ITEM_APPROVED or (state.edited and state.status == $ITEM_PROPOSED)
end

-- Maintains the counters of proposals; `by` is 1 or -1.
local function count_item(job, step, state, by)
  if not step or not step[$DEFINITION_PROPOSES] then
    return
  end
  local counter = COUNTED[state.status]
  if counter then
    job.set(counter, math.max(job.number(counter) + by, 0))
  end
  if is_pending(state) then
    job.set($RECORD_PENDING_CHANGES, math.max(job.number($RECORD_PENDING_CHANGES) + by, 0))
  end
end

-- Writes the new state of an item; `before` is from `read_item`. The caller has raised its version.
local function write_item(job, id, state, before)
  local step = job.step_of_item(id)
  before = before or read_item(job, id)
  if before then
    count_item(job, step, before, -1)
  end
  count_item(job, step, state, 1)
  redis.call('HSET', job.key($KEY_STATES), id, encode_state(state))
end

-- The values of many fields, in their order; false for a missing one.
local function values_of(hash, fields)
  local values = {}
  for first = 1, #fields, MAX_BATCH do
    local last = math.min(first + MAX_BATCH - 1, #fields)
    for _, value in ipairs(redis.call('HMGET', hash, unpack(fields, first, last))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- Calls `command name …` in batches for a list of any length.
local function in_batches(command, name, list)
  for first = 1, #list, MAX_BATCH do
    redis.call(command, name, unpack(list, first, math.min(first + MAX_BATCH - 1, #list)))
  end
end
