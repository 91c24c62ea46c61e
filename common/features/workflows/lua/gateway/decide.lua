-- DECIDE: decide on proposals, individually or by filter; the last decision ends their review.
--
-- keys  1 stored answer   2 state of the rate, 3 active jobs of the key (both only with limits)
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       5 execution id, 6 core job id, 7 core ttl_s of a step that may start
--       8 consumer group   9 backlog limit   10 µs between requests   11 burst   12 max active
--       13 job id   14 the review, or the step that proposes ('' for the open one)
--       15 who   16 name of the operation   17 digits of its undo token   18 note
--       19 '1' through the review step   20 '1' to reject undecided items
--       21 action for all ('' for individual ones)   22 only those with this status ('' for any)
--       23 only those with this confidence ('' for any)
--       then `item id, action, version (0 for any), note` each
-- answers
--   ok, {applied, failed, undo_token, pending, completed, started?}
--                       ids that have the requested status now, `{id, code, version, status}` of
--                       the others; whether the review has ended, and which step has started
--   missing, {what}     the job does not exist
--   reused              the key was used with another request
--   rate, full, quota   the step that would start is refused: nothing written
--   refused, {code}     there is nothing to decide on: nothing written

local STATUS_OF_ACTION = {
  [$ACTION_APPROVE] = $ITEM_APPROVED,
  [$ACTION_REJECT] = $ITEM_REJECTED,
  [$ACTION_RESET] = $ITEM_PROPOSED,
}

-- The step to decide on, and its review: of the named one, or of the first open one.
local function step_to_decide(job, named)
  for _, name in ipairs(job.step_names) do
    local open, review = open_to_decisions(job, name)
    if open and (named == '' or named == name or named == review) then
      return name, review
    end
  end
  return nil
end

-- Individual decisions from ARGV. Returns changes, ids that already have the requested status,
-- failures, and what to record.
local function decisions_at(job, step, first, last)
  local changes, applied, failed, record = {}, {}, {}, {}
  for at = first, last, 4 do
    local id, action, version, note = unpack(ARGV, at, at + 3)
    local declared = job.step_of_item(id)
    local before = declared and declared[$DEFINITION_NAME] == step and read_item(job, id)
    if not before then
      failed[#failed + 1] = { [$FACT_ID] = id, [$FACT_CODE] = $CODE_ITEM_NOT_FOUND }
    elseif version ~= '0' and tonumber(version) ~= before.version then
      failed[#failed + 1] = { [$FACT_ID] = id, [$FACT_CODE] = $CODE_VERSION_CONFLICT,
        [$FACT_VERSION] = before.version, [$FACT_STATUS] = before.status }
    elseif not REVIEWABLE[before.status] then
      failed[#failed + 1] = { [$FACT_ID] = id, [$FACT_CODE] = $CODE_NOT_REVIEWABLE,
        [$FACT_VERSION] = before.version, [$FACT_STATUS] = before.status }
    else
      applied[#applied + 1] = id
      if before.status ~= STATUS_OF_ACTION[action] then
        changes[#changes + 1] = { id = id, before = before, status = STATUS_OF_ACTION[action] }
        record[#record + 1] = { [$AUDIT_ID] = id, [$AUDIT_ACTION] = action, [$AUDIT_NOTE] = note }
      end
    end
  end
  return changes, applied, failed, record
end

-- The same for all items that pass the filter.
local function decisions_by_filter(job, step, action, status, min_confidence)
  local changes, applied = {}, {}
  local least = tonumber(min_confidence)
  local ids, states = proposals_of(job, step)
  for _, id in ipairs(ids) do
    local before = states[id] and decode_state(states[id])
    if before and REVIEWABLE[before.status] and (status == '' or before.status == status)
      and (not least or tonumber(before.confidence) >= least) then
      applied[#applied + 1] = id
      if before.status ~= STATUS_OF_ACTION[action] then
        changes[#changes + 1] = { id = id, before = before, status = STATUS_OF_ACTION[action] }
      end
    end
  end
  return changes, applied, {}, {}
end

-- Rejects items that are undecided and not part of this call.
local function reject_the_rest(job, step, changes, applied)
  local decided = {}
  for _, id in ipairs(applied) do
    decided[id] = true
  end
  for _, change in ipairs(changes_of_undecided(job, step, $ITEM_REJECTED)) do
    if not decided[change.id] then
      changes[#changes + 1] = change
      applied[#applied + 1] = change.id
    end
  end
end

operations[$WF_OPERATION_DECIDE] = function(key, arg, last, _, key_count)
  local once, ids = once_at(key, arg), ids_at(arg + 4)
  local admission = admission_at(key, key_count, arg + 7)
  local job_id, named, who, operation, digits, note, reviewing, finalize, action, status, least =
    unpack(ARGV, arg + 12, arg + 22)
  local job, reply = job_for(once, job_id)
  if not job then
    return reply
  end
  local step, review = step_to_decide(job, named)
  local through = reviewing == '1' and review
  if not step or (reviewing == '1' and not (review and all_complete_before(job, review))) then
    return refuse($CODE_NOT_REVIEWABLE)
  end
  local changes, applied, failed, record
  if action ~= '' then
    changes, applied, failed, record = decisions_by_filter(job, step, action, status, least)
  else
    changes, applied, failed, record = decisions_at(job, step, arg + 23, last)
  end
  if finalize == '1' and #failed == 0 then -- otherwise an item would be rejected by mistake
    reject_the_rest(job, step, changes, applied)
  end
  local waits = review and is_waiting(job, review)
  local begins = through and not waits
  local may_end = (waits or begins) and (pending_after(job, step, changes) == 0
    or (begins and is_automatic(job))) -- assumes that the rest is approved automatically
  if may_end and continues_after(job, review) then
    reply = refusal_of(admission, true)
    if reply then
      return reply
    end
    check_ids(ids)
  end

  begin_work(job)
  if begins then
    begin_review(job, review)
  end
  if #changes > 0 then
    job.set($RECORD_LAST_OPERATION, operation)
  end
  local token = make_changes(job, step, review, changes, {
    kind = $OPERATION_KIND_DECIDE, who = who, operation = operation, digits = digits, note = note,
    decisions = record,
  })
  if begins then
    auto_approve(job, review, step)
  end
  local outcome
  if waits or begins then
    outcome = settle_review(job, review, step, ids)
  else
    outcome = { completed = false, pending = pending_of(job, step) }
  end
  save(job)
  if outcome.started then
    admit(admission, ids.core_job)
  end
  return keep(once, found($FOUND_OK, {
    [$FACT_APPLIED] = applied, [$FACT_FAILED] = failed, [$FACT_UNDO_TOKEN] = token,
    [$FACT_PENDING] = outcome.pending, [$FACT_COMPLETED] = outcome.completed,
    [$FACT_STARTED] = outcome.started,
  }))
end
