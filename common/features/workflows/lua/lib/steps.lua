-- STEPS: how a step starts, ends and is reset. An execution of a WORK step is one core job,
-- accepted in the same script; a REVIEW step has none, it is only state (review.lua).
--
-- `ids` is `{execution, core_job, ttl_s}`: new ids for the one step that an operation may start. An
-- operation with ids calls `check_ids(ids)` before the first write.

-- Defined in review.lua: `enter_review(job, name, ids)` opens a review, or ends it at once if
-- nothing is left to decide. Returns `{waiting, completed, pending, started}`, the last if the job
-- continued. A waiting review clears the job's target: an execute never skips a review.
local enter_review

local function ids_at(arg)
  return { execution = ARGV[arg], core_job = ARGV[arg + 1], ttl_s = ARGV[arg + 2] }
end

local function check_ids(ids)
  check_core_job(ids.core_job)
end

local function filled(value)
  return value ~= nil and value ~= cjson.null and value
end

-- Accepts the core job of a step, or of a part of it.
local function accept_step(job, name, execution, core_job, ttl_s, part)
  local declared = job.step_at(name)
  local arguments = {
    [$ARGUMENT_JOB] = job.id, [$ARGUMENT_STEP] = name, [$ARGUMENT_EXECUTION] = execution,
    [$ARGUMENT_PART] = part,
  }
  local payload = cjson.encode({ [$PAYLOAD_TOOL] = $STEP_TOOL, [$PAYLOAD_ARGS] = arguments })
  local options = {}
  if job.get($RECORD_TENANT) ~= '' then
    options[$OPTION_TENANT] = job.get($RECORD_TENANT)
  end
  options[$OPTION_TIMEOUT_S] = filled(declared[$DEFINITION_TIMEOUT_S]) or nil
  accept_core_job(core_job, payload, ttl_s, filled(declared[$DEFINITION_MAX_ATTEMPTS]) or nil, options)
end

-- Core jobs of a step, its own first.
local function core_jobs_of(job, name)
  local jobs = {}
  for core_job in string.gmatch(job.step(name, $FIELD_CORE_JOB) .. ' '
    .. job.step(name, $FIELD_PART_JOBS), '%S+') do
    jobs[#jobs + 1] = core_job
  end
  return jobs
end

-- Removes the data that an execution stored in a hash.
local function forget_execution(job, name, execution)
  if execution == '' then
    return
  end
  local left = {}
  local start = execution .. ':'
  for _, field in ipairs(redis.call('HKEYS', job.key(name))) do
    if string.sub(field, 1, #start) == start then
      left[#left + 1] = field
    end
  end
  in_batches('HDEL', job.key(name), left)
end

-- True if there are no unapplied changes.
local function is_settled(job)
  if job.number($RECORD_PENDING_CHANGES) > 0 then
    return false
  end
  for _, name in ipairs(job.step_names) do
    if job.step_at(name)[$DEFINITION_SETTLES] and job.step(name, $FIELD_STATUS) == $STEPPER_COMPLETE then
      return true
    end
  end
  return false
end

local function settled_state(job)
  return is_settled(job) and $DRAFT_CLEAN or $DRAFT_DIRTY
end

local function mark_running(job, name)
  job.set($RECORD_STATUS, $WORKFLOW_RUNNING)
  job.set($RECORD_CURRENT_STEP, name)
  job.set($RECORD_COMPLETED_MS, '')
end

-- Starts a new execution of a WORK step. Returns its facts.
local function start_step(job, name, ids)
  local execution, core_job = ids.execution, ids.core_job
  local attempt = (tonumber(job.step(name, $FIELD_ATTEMPT)) or 0) + 1
  local former = job.step(name, $FIELD_EXECUTION)
  forget_execution(job, $KEY_DATA, former)
  forget_execution(job, $KEY_PARTS, former)
  for field, value in pairs({
    [$FIELD_STATUS] = $STEPPER_RUNNING, [$FIELD_STARTED_MS] = now_text,
    [$FIELD_UPDATED_MS] = now_text, [$FIELD_ATTEMPT] = attempt, [$FIELD_EXECUTION] = execution,
    [$FIELD_CORE_JOB] = core_job, [$FIELD_SUMMARY] = '', [$FIELD_COUNT] = '',
    [$FIELD_ERRORS] = '', [$FIELD_DONE] = '0', [$FIELD_TOTAL] = '0', [$FIELD_PARTS] = '',
    [$FIELD_PART_JOBS] = '', [$FIELD_UNDO_TOKEN] = '', [$FIELD_EFFECTS] = '',
  }) do
    job.set_step(name, field, value)
  end
  mark_running(job, name)
  local draft = job.step_at(name)[$DEFINITION_DRAFT]
  if draft ~= $DRAFT_CLEAN then
    job.set($RECORD_DRAFT_STATE, draft)
  elseif job.get($RECORD_DRAFT_STATE) == $DRAFT_FAILED then -- the step itself writes no draft
    job.set($RECORD_DRAFT_STATE, settled_state(job))
  end
  accept_step(job, name, execution, core_job, ids.ttl_s)
  redis.call('HSET', names.running, job.id, name .. ' ' .. execution)
  redis.call('EXPIRE', names.running, '$LONGEST_TTL_S')
  local facts = {
    [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = execution, [$FACT_CORE_JOB_ID] = core_job,
  }
  emit_event(job, $WF_EVENT_STEP_STARTED, name, cjson.encode({
    [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = execution, [$FACT_CORE_JOB_ID] = core_job,
    [$FACT_ATTEMPT] = attempt,
  }))
  return facts
end

local function counts_of(job)
  local counts = {}
  for status, counter in pairs(COUNTED) do
    counts[status] = job.number(counter)
  end
  return counts
end

-- Starts a step of either kind. Returns `{started}` or the result of `enter_review`.
local function enter_step(job, name, ids)
  if job.step_at(name)[$DEFINITION_KIND] ~= $KIND_REVIEW then
    return { started = start_step(job, name, ids) }
  end
  return enter_review(job, name, ids)
end

local function complete_job(job)
  job.set($RECORD_STATUS, $WORKFLOW_COMPLETED)
  job.set($RECORD_COMPLETED_MS, now_text)
  job.set($RECORD_TARGET, '')
  emit_event(job, $WF_EVENT_JOB_COMPLETED, job.get($RECORD_CURRENT_STEP),
    cjson.encode({ [$FACT_COUNTS] = counts_of(job) }))
end

-- Completes a step, and starts the next one if the job is to continue. Returns the result of
-- `enter_step`, or an empty table.
local function complete_step(job, name, summary, count, ids)
  local declared, at = job.step_at(name), job.index_of(name)
  job.set_step(name, $FIELD_STATUS, $STEPPER_COMPLETE)
  job.set_step(name, $FIELD_UPDATED_MS, now_text)
  job.set_step(name, $FIELD_SUMMARY, summary)
  job.set_step(name, $FIELD_COUNT, count)
  local total = job.step(name, $FIELD_TOTAL)
  if (tonumber(total) or 0) < 1 then
    total = '1'
    job.set_step(name, $FIELD_TOTAL, total)
  end
  job.set_step(name, $FIELD_DONE, total)
  mark_running(job, name)
  if declared[$DEFINITION_SETTLES] or job.get($RECORD_DRAFT_STATE) == $DRAFT_SAVING then
    job.set($RECORD_DRAFT_STATE, settled_state(job))
  end
  redis.call('HDEL', names.running, job.id)
  emit_event(job, $WF_EVENT_STEP_COMPLETED, name, cjson.encode({
    [$FACT_STEP] = name, [$FACT_SUMMARY] = summary, [$FACT_COUNT] = tonumber(count) or 0,
  }))
  local target = job.index_of(job.get($RECORD_TARGET)) or 0
  if at >= target then
    job.set($RECORD_TARGET, '')
  end
  local following = job.step_names[at + 1]
  if not following then
    complete_job(job)
    return {}
  end
  if ids and (at < target or job.get($RECORD_AUTO_ADVANCE) == '1') then
    return enter_step(job, following, ids)
  end
  return {}
end

-- Ends the job with its step: `step_status` is failed or cancelled. `errors` is a JSON list.
local function fail_step(job, name, step_status, errors)
  errors = errors ~= '' and errors or '[]'
  job.set_step(name, $FIELD_STATUS, step_status)
  job.set_step(name, $FIELD_UPDATED_MS, now_text)
  job.set_step(name, $FIELD_ERRORS, errors)
  forget_execution(job, $KEY_PARTS, job.step(name, $FIELD_EXECUTION))
  job.set($RECORD_STATUS, $WORKFLOW_FAILED)
  job.set($RECORD_CURRENT_STEP, name)
  job.set($RECORD_DRAFT_STATE, $DRAFT_FAILED)
  job.set($RECORD_COMPLETED_MS, now_text)
  job.set($RECORD_TARGET, '')
  redis.call('HDEL', names.running, job.id)
  redis.call('ZREM', names.reviews, job.id)
  emit_event(job, $WF_EVENT_STEP_FAILED, name,
    '{"' .. $FACT_STEP .. '":"' .. name .. '","' .. $FACT_ERRORS .. '":' .. errors .. '}')
  emit_event(job, $WF_EVENT_JOB_FAILED, name, cjson.encode({ [$FACT_COUNTS] = counts_of(job) }))
end

local IN_PROGRESS = { [$STEPPER_RUNNING] = true, [$STEPPER_WAITING_INPUT] = true }

-- Cancels a job that has not ended; also used when a review expires.
local function cancel_job(job, reason)
  for _, name in ipairs(job.step_names) do
    if IN_PROGRESS[job.step(name, $FIELD_STATUS)] then
      job.set_step(name, $FIELD_STATUS, $STEPPER_CANCELLED)
      job.set_step(name, $FIELD_UPDATED_MS, now_text)
      forget_execution(job, $KEY_PARTS, job.step(name, $FIELD_EXECUTION))
    end
  end
  if job.get($RECORD_DRAFT_STATE) == $DRAFT_SAVING then
    job.set($RECORD_DRAFT_STATE, $DRAFT_DIRTY)
  end
  job.set($RECORD_STATUS, $WORKFLOW_CANCELLED)
  job.set($RECORD_COMPLETED_MS, now_text)
  job.set($RECORD_TARGET, '')
  redis.call('HDEL', names.running, job.id)
  redis.call('ZREM', names.reviews, job.id)
  emit_event(job, $WF_EVENT_JOB_CANCELLED, job.get($RECORD_CURRENT_STEP), cjson.encode({
    [$FACT_COUNTS] = counts_of(job), [$FACT_REASON] = reason ~= '' and reason or nil,
  }))
end

-- Removes the items of a step and their undo data. Effects of an operation outside the workflow can
-- still be undone.
local function drop_items(job, name)
  local ids = redis.call('ZRANGE', job.order_of(name), 0, -1)
  if #ids == 0 then
    return
  end
  local gone, highest = {}, tonumber(job.step(name, $FIELD_VERSION_FLOOR)) or 0
  local declared = job.step_at(name)
  for at, raw in ipairs(values_of(job.key($KEY_STATES), ids)) do
    gone[ids[at]] = true
    -- Something was written by now: an invalid state must not stop it.
    local read, state = pcall(decode_state, raw)
    if read then
      count_item(job, declared, state, -1)
      highest = math.max(highest, state.version)
    end
  end
  job.set_step(name, $FIELD_VERSION_FLOOR, highest)
  if declared[$DEFINITION_PROPOSES] then
    job.set($RECORD_LAST_OPERATION, '')
  end
  in_batches('HDEL', job.key($KEY_ITEMS), ids)
  in_batches('HDEL', job.key($KEY_STATES), ids)
  in_batches('HDEL', job.key($KEY_UNDOABLE), ids)
  in_batches('ZREM', job.key($KEY_ORDER), ids)
  redis.call('DEL', job.order_of(name))
  for _, token in ipairs(redis.call('LRANGE', job.key($KEY_UNDO), 0, -1)) do
    local operation = cjson.decode(redis.call('HGET', job.key($KEY_OPERATIONS), token) or '{}')
    local touched = false
    local items = operation[$OPERATION_FIELD_ITEMS] or {}
    for id in pairs(items) do
      if gone[id] then
        items[id] = nil
        touched = true
      end
    end
    if touched or not next(operation) then
      if next(items) or operation[$OPERATION_FIELD_EFFECTS] then
        redis.call('HSET', job.key($KEY_OPERATIONS), token, cjson.encode(operation))
      else
        redis.call('LREM', job.key($KEY_UNDO), 0, token)
        redis.call('HDEL', job.key($KEY_OPERATIONS), token)
      end
    end
  end
end

-- Resets a step to not started. The items that a review recorded are removed too.
local function reset_step(job, name)
  drop_items(job, name)
  local execution = job.step(name, $FIELD_EXECUTION)
  forget_execution(job, $KEY_DATA, execution)
  forget_execution(job, $KEY_PARTS, execution)
  for _, field in ipairs({ $FIELD_STARTED_MS, $FIELD_EXECUTION, $FIELD_CORE_JOB, $FIELD_SUMMARY,
    $FIELD_COUNT, $FIELD_ERRORS, $FIELD_PARTS, $FIELD_PART_JOBS, $FIELD_UNDO_TOKEN,
    $FIELD_EFFECTS }) do
    job.set_step(name, field, '')
  end
  job.set_step(name, $FIELD_DONE, '0')
  job.set_step(name, $FIELD_TOTAL, '0')
  job.set_step(name, $FIELD_STATUS, $STEPPER_NOT_STARTED)
  job.set_step(name, $FIELD_UPDATED_MS, now_text)
end

-- RUNNING: `{job, step, execution, lease, attempt, token}` of an execution, from six arguments of
-- the store. The last three prove the attempt of its core job; a repair has none, and passes an
-- empty lease.
local function running_at(arg)
  return { job = ARGV[arg], step = ARGV[arg + 1], execution = ARGV[arg + 2],
    lease = ARGV[arg + 3], attempt = ARGV[arg + 4], token = ARGV[arg + 5] }
end

-- The state of an execution: ok, already (it has ended) or lost. `running` if its worker calls:
-- another attempt of the same execution is lost.
local function execution_state(job, name, execution, running)
  if running and not is_held(running) then
    return $FOUND_LOST
  end
  if job.index_of(name) and job.step(name, $FIELD_EXECUTION) == execution then
    if job.step(name, $FIELD_STATUS) == $STEPPER_RUNNING then
      return $FOUND_OK
    end
    return $FOUND_ALREADY
  end
  return $FOUND_LOST
end

local function record_progress(job, name, done, total)
  job.set_step(name, $FIELD_DONE, done)
  job.set_step(name, $FIELD_TOTAL, total)
  job.set_step(name, $FIELD_UPDATED_MS, now_text)
  emit_event(job, $WF_EVENT_STEP_PROGRESS, name, cjson.encode({
    [$FACT_STEP] = name, [$FACT_DONE] = done, [$FACT_TOTAL] = total,
  }))
end
