-- EXECUTE: start a step, or the first incomplete one on the way to it.
--
-- keys  1 stored answer   2 state of the rate, 3 active jobs of the key (both only with limits)
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       5 execution id, 6 core job id, 7 core ttl_s of a step that may start
--       8 consumer group   9 backlog limit   10 µs between requests   11 burst   12 max active
--       13 job id   14 step   15 '1' to refuse instead of running earlier steps first
--       16 '1' to discard decisions   17 options JSON ('' keeps the present ones)
-- answers
--   ok, {step, execution_id, core_job_id, started}   the step that runs now
--   ok, {step, waiting, completed, pending}          for a review; both if the job continued
--   missing                                          the job does not exist
--   reused                                           the key was used with another request
--   rate, full, quota                                refused for now: nothing written
--   refused, {code, step?, execution_id?, items?}    nothing written, unless a review was entered

-- Some of the decisions that would be lost with the items from a step on.
local function decided_from(job, first)
  local decided = {}
  for at = first, #job.step_names do
    if job.step_at(at)[$DEFINITION_PROPOSES] then
      for _, id in ipairs(redis.call('ZRANGE', job.order_of(job.step_names[at]), 0, -1)) do
        local state = read_item(job, id)
        if state and (state.edited or state.status ~= $ITEM_PROPOSED) then
          decided[#decided + 1] = id
          if #decided == 100 then
            return decided
          end
        end
      end
    end
  end
  return decided
end

-- Resets a complete step and everything that depends on it.
local function reset_from(job, first)
  local name = job.step_names[first]
  for at = #job.step_names, first + 1, -1 do
    reset_step(job, job.step_names[at])
  end
  if job.step_at(first)[$DEFINITION_KIND] ~= $KIND_REVIEW then -- decisions of a review still hold
    drop_items(job, name)
  end
  redis.call('ZREM', names.reviews, job.id)
  job.set($RECORD_CURRENT_STEP, name)
  job.set($RECORD_STATUS, $WORKFLOW_RUNNING)
  emit_event(job, $WF_EVENT_STEP_RESET, name, cjson.encode({
    [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = job.step(name, $FIELD_EXECUTION),
  }))
end

-- The number of undecided items in a waiting review; 0 for any other step.
local function pending_in(job, name)
  if job.step(name, $FIELD_STATUS) ~= $STEPPER_WAITING_INPUT then
    return 0
  end
  return (tonumber(job.step(name, $FIELD_TOTAL)) or 0) - (tonumber(job.step(name, $FIELD_DONE)) or 0)
end

local function first_incomplete(job)
  for at, name in ipairs(job.step_names) do
    if job.step(name, $FIELD_STATUS) ~= $STEPPER_COMPLETE then
      return at
    end
  end
  return nil
end

-- The first ended review before a step whose items became undecided again.
local function review_to_reopen(job, before)
  for at = 1, before - 1 do
    local name, declared = job.step_names[at], job.step_at(at)
    if declared[$DEFINITION_KIND] == $KIND_REVIEW
      and job.step(name, $FIELD_STATUS) == $STEPPER_COMPLETE
      and pending_of(job, declared[$DEFINITION_REVIEWS]) > 0 then
      return at
    end
  end
  return nil
end

-- True if going to a step puts a job on the queue. A review does if it ends at once and the job
-- continues. It is assumed that the rest is approved automatically.
local function starts_work(job, name)
  local declared = job.step_at(name)
  if declared[$DEFINITION_KIND] ~= $KIND_REVIEW then
    return true
  end
  return continues_after(job, name) and (pending_of(job, declared[$DEFINITION_REVIEWS]) == 0
    or (is_automatic(job) and not is_waiting(job, name)))
end

operations[$WF_OPERATION_EXECUTE] = function(key, arg, last, _, key_count)
  local once, ids = once_at(key, arg), ids_at(arg + 4)
  local admission = admission_at(key, key_count, arg + 7)
  local job_id, requested, strict, discard, options = unpack(ARGV, arg + 12, last)
  local job, reply = job_for(once, job_id)
  if not job then
    return reply
  end
  local target = job.index_of(requested)
  if not target then
    return refuse($CODE_UNKNOWN_STEP)
  end
  local status = job.get($RECORD_STATUS)
  if status == $WORKFLOW_COMPLETED or status == $WORKFLOW_CANCELLED then
    return refuse($CODE_JOB_TERMINAL)
  end
  for _, name in ipairs(job.step_names) do
    if job.step(name, $FIELD_STATUS) == $STEPPER_RUNNING then
      return refuse($CODE_STEP_IN_PROGRESS,
        { [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = job.step(name, $FIELD_EXECUTION) })
    end
  end
  local first = math.min(first_incomplete(job) or target, target)
  first = review_to_reopen(job, first) or first
  local again = job.step(job.step_names[first], $FIELD_STATUS) == $STEPPER_COMPLETE
  if again then
    local lost = decided_from(job, first)
    if #lost > 0 and discard ~= '1' then
      return refuse($CODE_WOULD_DISCARD, { [$FACT_STEP] = requested, [$FACT_ITEMS] = lost })
    end
  end
  if first < target and strict == '1' then
    return refuse($CODE_STEP_OUT_OF_ORDER, { [$FACT_STEP] = job.step_names[first] })
  end
  local name = job.step_names[first]
  local pending = pending_in(job, name)
  if first < target and pending > 0 then
    return refuse($CODE_REVIEW_REQUIRED,
      { [$FACT_STEP] = name, [$FACT_PENDING] = pending })
  end
  job.set($RECORD_TARGET, first < target and requested or '')
  reply = refusal_of(admission, starts_work(job, name))
  if reply then
    return reply
  end
  check_ids(ids)

  begin_work(job)
  if again then
    reset_from(job, first)
  end
  if options ~= '' then
    job.set_step(requested, $FIELD_OPTIONS, options)
  end
  local outcome = enter_step(job, name, ids)
  save(job)
  admit(admission, outcome.started and ids.core_job)
  if outcome.waiting and first < target then
    return refuse($CODE_REVIEW_REQUIRED, { [$FACT_STEP] = name, [$FACT_PENDING] = outcome.pending })
  end
  local facts = outcome.started or { [$FACT_STEP] = name }
  facts[$FACT_STARTED] = outcome.started ~= nil
  if outcome.pending then
    facts[$FACT_WAITING], facts[$FACT_COMPLETED] = outcome.waiting, outcome.completed
    facts[$FACT_PENDING] = outcome.pending
  end
  return keep(once, found($FOUND_OK, facts))
end
