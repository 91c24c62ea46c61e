-- EDIT: replace the payload of a proposal, based on a version of it.
--
-- keys  1 stored answer   2 state of the rate, 3 active jobs of the key (both only with limits)
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       5 execution id, 6 core job id, 7 core ttl_s of a step that may start
--       8 consumer group   9 backlog limit   10 µs between requests   11 burst   12 max active
--       13 job id   14 item id   15 payload JSON   16 base version   17 confidence
--       18 '1' to approve it too   19 who   20 digits of the undo token
-- answers
--   ok, {item_id, version, status, undo_token, pending, completed, started?}
--                                     its new state; whether the review has ended with it, and
--                                     which step has started
--   rate, full, quota                 the step that would start is refused: nothing written
--   missing, {what}                   the job or the item does not exist
--   reused                            the key was used with another request
--   refused, {code, version, status}  it has changed since, or is not open to decisions now

operations[$WF_OPERATION_EDIT] = function(key, arg, _, _, key_count)
  local once, ids = once_at(key, arg), ids_at(arg + 4)
  local admission = admission_at(key, key_count, arg + 7)
  local job_id, id, payload, version, confidence, approve, who, digits =
    unpack(ARGV, arg + 12, arg + 19)
  local job, reply = job_for(once, job_id)
  if not job then
    return reply
  end
  local declared, before = job.step_of_item(id), read_item(job, id)
  if not declared or not before then
    return found($FOUND_MISSING, { [$FACT_WHAT] = $CODE_ITEM_NOT_FOUND })
  end
  local step = declared[$DEFINITION_NAME]
  local facts = { [$FACT_VERSION] = before.version, [$FACT_STATUS] = before.status }
  local open, review = open_to_decisions(job, step)
  if not open or not REVIEWABLE[before.status] then
    return refuse($CODE_NOT_REVIEWABLE, facts)
  end
  if before.version ~= tonumber(version) then
    return refuse($CODE_VERSION_CONFLICT, facts)
  end
  local change = { id = id, before = before, payload = payload, confidence = confidence,
    status = approve == '1' and $ITEM_APPROVED or before.status }
  local waits = review and is_waiting(job, review)
  if waits and pending_after(job, step, { change }) == 0 and continues_after(job, review) then
    reply = refusal_of(admission, true)
    if reply then
      return reply
    end
    check_ids(ids)
  end

  begin_work(job)
  local token = make_changes(job, step, review, { change }, {
    kind = $OPERATION_KIND_EDIT, who = who, operation = $OPERATION_KIND_EDIT, digits = digits,
  })
  local outcome
  if waits then
    outcome = settle_review(job, review, step, ids)
  else
    outcome = { completed = false, pending = pending_of(job, step) }
  end
  save(job)
  if outcome.started then
    admit(admission, ids.core_job)
  end
  return keep(once, found($FOUND_OK, {
    [$FACT_ITEM_ID] = id, [$FACT_VERSION] = before.version + 1, [$FACT_STATUS] = change.status,
    [$FACT_UNDO_TOKEN] = token, [$FACT_PENDING] = outcome.pending,
    [$FACT_COMPLETED] = outcome.completed, [$FACT_STARTED] = outcome.started,
  }))
end
