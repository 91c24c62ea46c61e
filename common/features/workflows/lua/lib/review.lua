-- REVIEW: a step that waits for a person to decide on the items of an earlier one. It is only
-- state: no core job, and no timer except an entry in the list of reviews, which workers scan.

local function review_options(job)
  local read, options = pcall(cjson.decode, job.get($RECORD_REVIEW))
  return read and type(options) == 'table' and options or {}
end

-- True if an item, given its stored state, waits for a decision.
local function is_undecided(raw)
  return string.sub(raw, 1, #$ITEM_PROPOSED + 1) == $ITEM_PROPOSED .. ' '
end

-- Ids of a step's items, and their stored states by id.
local function proposals_of(job, step)
  local ids = redis.call('ZRANGE', job.order_of(step), 0, -1)
  local states = {}
  for at, raw in ipairs(values_of(job.key($KEY_STATES), ids)) do
    states[ids[at]] = raw or nil
  end
  return ids, states
end

-- Changes that give all undecided items of a step this status, or those of some confidence.
local function changes_of_undecided(job, step, status, min_confidence)
  local changes = {}
  local ids, states = proposals_of(job, step)
  for _, id in ipairs(ids) do
    if states[id] and is_undecided(states[id]) then
      local before = decode_state(states[id])
      if tonumber(before.confidence) >= (min_confidence or 0) then
        changes[#changes + 1] = { id = id, before = before, status = status }
      end
    end
  end
  return changes
end

-- The numbers of undecided items and of all items of a step. If no other step proposes, the job's
-- counters have them.
local function pending_of(job, step)
  local proposing, pending = 0, 0
  for _, name in ipairs(job.step_names) do
    proposing = proposing + (job.step_at(name)[$DEFINITION_PROPOSES] and 1 or 0)
  end
  if proposing == 1 then
    return job.number($RECORD_PROPOSED), redis.call('ZCARD', job.order_of(step))
  end
  local ids, states = proposals_of(job, step)
  for _, id in ipairs(ids) do
    if states[id] and is_undecided(states[id]) then
      pending = pending + 1
    end
  end
  return pending, #ids
end

-- The number of undecided items after these changes.
local function pending_after(job, step, changes)
  local pending = pending_of(job, step)
  for _, change in ipairs(changes) do
    if change.before.status == $ITEM_PROPOSED then
      pending = pending - 1
    end
    if change.status == $ITEM_PROPOSED then
      pending = pending + 1
    end
  end
  return pending
end

-- Whether the items of a step may be decided on now, and the review for that, if the step has one:
-- the first that is not complete.
local function open_to_decisions(job, step)
  local status = job.get($RECORD_STATUS)
  local declared = job.step_at(step)
  if status == $WORKFLOW_COMPLETED or status == $WORKFLOW_CANCELLED
    or not (declared and declared[$DEFINITION_PROPOSES])
    or job.step(step, $FIELD_STATUS) ~= $STEPPER_COMPLETE then
    return false
  end
  local open = true
  for _, name in ipairs(job.step_names) do
    if job.step_at(name)[$DEFINITION_REVIEWS] == step then
      if job.step(name, $FIELD_STATUS) ~= $STEPPER_COMPLETE then
        return true, name
      end
      open = false
    end
  end
  return open
end

local function all_complete_before(job, name)
  for at = 1, job.index_of(name) - 1 do
    if job.step(job.step_names[at], $FIELD_STATUS) ~= $STEPPER_COMPLETE then
      return false
    end
  end
  return true
end

-- True if the end of a review starts the next step.
local function continues_after(job, name)
  local at = job.index_of(name)
  return job.step_names[at + 1] ~= nil and (job.get($RECORD_AUTO_ADVANCE) == '1'
    or at < (job.index_of(job.get($RECORD_TARGET)) or 0))
end

local function is_waiting(job, name)
  return job.step(name, $FIELD_STATUS) == $STEPPER_WAITING_INPUT
end

-- When a review that begins now must be checked: when it expires or, without a timeout, when the
-- job may be gone.
local function next_check_at(job)
  local timeout_s = filled(review_options(job)[$REVIEW_TIMEOUT_S])
  return as_integer(now_ms + math.floor(1000 * (tonumber(timeout_s or job.ttl_s()))))
end

local function begin_review(job, name)
  local attempt = (tonumber(job.step(name, $FIELD_ATTEMPT)) or 0) + 1
  local execution = $EXECUTION_ID_PREFIX .. fresh_digits(job)
  for field, value in pairs({
    [$FIELD_STATUS] = $STEPPER_RUNNING, [$FIELD_STARTED_MS] = now_text,
    [$FIELD_UPDATED_MS] = now_text, [$FIELD_ATTEMPT] = attempt, [$FIELD_EXECUTION] = execution,
    [$FIELD_SUMMARY] = '', [$FIELD_COUNT] = '', [$FIELD_ERRORS] = '',
  }) do
    job.set_step(name, field, value)
  end
  mark_running(job, name)
  if job.get($RECORD_DRAFT_STATE) == $DRAFT_FAILED then
    job.set($RECORD_DRAFT_STATE, settled_state(job))
  end
  emit_event(job, $WF_EVENT_STEP_STARTED, name, cjson.encode({
    [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = execution, [$FACT_ATTEMPT] = attempt,
  }))
end

local function wait_for_decisions(job, name, pending)
  job.set_step(name, $FIELD_STATUS, $STEPPER_WAITING_INPUT)
  job.set_step(name, $FIELD_UPDATED_MS, now_text)
  job.set($RECORD_STATUS, $WORKFLOW_WAITING_INPUT)
  job.set($RECORD_CURRENT_STEP, name)
  job.set($RECORD_TARGET, '') -- an execute never skips a review
  redis.call('HDEL', names.running, job.id)
  redis.call('ZADD', names.reviews, next_check_at(job), job.id)
  redis.call('EXPIRE', names.reviews, '$LONGEST_TTL_S')
  emit_event(job, $WF_EVENT_JOB_WAITING_INPUT, name,
    cjson.encode({ [$FACT_STEP] = name, [$FACT_PENDING] = pending }))
end

local function is_automatic(job)
  return review_options(job)[$REVIEW_MODE] == $MODE_AUTO
end

-- In mode `auto`, approves items whose confidence is high enough.
local function auto_approve(job, name, step)
  if not is_automatic(job) then
    return
  end
  local least = tonumber(filled(review_options(job)[$REVIEW_MIN_CONFIDENCE]) or 1)
  local changes = changes_of_undecided(job, step, $ITEM_APPROVED, least)
  local operation = $ACTION_APPROVE .. '_' .. $SELECTION_FILTERED
  if #changes > 0 then
    job.set($RECORD_LAST_OPERATION, operation)
  end
  make_changes(job, step, name, changes, {
    kind = $OPERATION_KIND_DECIDE, who = $DECIDER_AUTO, operation = operation,
    digits = fresh_digits(job),
  })
end

-- Ends a review if nothing is left to decide, otherwise lets it wait.
local function settle_review(job, name, step, ids)
  local pending, total = pending_of(job, step)
  job.set_step(name, $FIELD_DONE, total - pending)
  job.set_step(name, $FIELD_TOTAL, total)
  if pending > 0 then
    if not is_waiting(job, name) then
      wait_for_decisions(job, name, pending)
    end
    return { waiting = true, completed = false, pending = pending }
  end
  redis.call('ZREM', names.reviews, job.id)
  local summary = total == 0 and 'Nothing to decide' or string.format('%d approved, %d rejected',
    job.number($RECORD_APPROVED), job.number($RECORD_REJECTED))
  local outcome = complete_step(job, name, summary, as_integer(total), ids)
  return { waiting = outcome.waiting or false, completed = true, pending = outcome.pending or 0,
    started = outcome.started }
end

-- See steps.lua. A waiting review continues to wait, unless everything was decided meanwhile.
function enter_review(job, name, ids)
  local step = job.step_at(name)[$DEFINITION_REVIEWS]
  if not is_waiting(job, name) then
    begin_review(job, name)
    auto_approve(job, name, step)
  end
  return settle_review(job, name, step, ids)
end

-- Something was undone after a review had ended: it waits again.
local function reopen_review(job, name, pending)
  local execution = job.step(name, $FIELD_EXECUTION)
  mark_running(job, name)
  if job.get($RECORD_DRAFT_STATE) == $DRAFT_FAILED then
    job.set($RECORD_DRAFT_STATE, settled_state(job))
  end
  emit_event(job, $WF_EVENT_STEP_RESET, name,
    cjson.encode({ [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = execution }))
  wait_for_decisions(job, name, pending)
end
