-- EXPIRE_REVIEW: end a review that was not finished in time, according to the job's options.
--
-- keys  none
-- args  1 job id
--       2 execution id, 3 core job id, 4 core ttl_s of a step that may start
-- answers
--   ok, {completed, started?}   ended by this call
--   already                     no review is waiting, or it has time left
--   missing                     the job does not exist

-- The waiting review of the job.
local function waiting_review(job)
  for _, name in ipairs(job.step_names) do
    if is_waiting(job, name) then
      return name
    end
  end
  return nil
end

local ENDINGS = {
  [$ON_TIMEOUT_APPROVE] = { $ACTION_APPROVE, $ITEM_APPROVED },
  [$ON_TIMEOUT_REJECT] = { $ACTION_REJECT, $ITEM_REJECTED },
}

operations[$WF_OPERATION_EXPIRE_REVIEW] = function(_, arg)
  local job_id, ids = ARGV[arg], ids_at(arg + 1)
  must_be(names.reviews, 'zset')
  local job = load_job(job_id)
  if not job then
    redis.call('ZREM', names.reviews, job_id)
    return found($FOUND_MISSING)
  end
  local review = waiting_review(job)
  local due = tonumber(redis.call('ZSCORE', names.reviews, job_id) or '')
  if not review then
    redis.call('ZREM', names.reviews, job_id)
    return found($FOUND_ALREADY)
  end
  if due and due > now_ms then
    return found($FOUND_ALREADY)
  end
  local options = review_options(job)
  if not filled(options[$REVIEW_TIMEOUT_S]) or not due then -- it has no timeout
    redis.call('ZADD', names.reviews, next_check_at(job), job_id)
    return found($FOUND_ALREADY)
  end
  local step = job.step_at(review)[$DEFINITION_REVIEWS]
  local ending = ENDINGS[options[$REVIEW_ON_TIMEOUT]]
  local pending = pending_of(job, step)
  if ending or pending == 0 then
    if continues_after(job, review) then
      check_ids(ids)
    end
    end_work(job)
    if pending > 0 then
      local operation = ending[1] .. '_' .. $SELECTION_FILTERED
      job.set($RECORD_LAST_OPERATION, operation)
      make_changes(job, step, review, changes_of_undecided(job, step, ending[2]), {
        kind = $OPERATION_KIND_DECIDE, who = $DECIDER_TIMEOUT, operation = operation,
        digits = fresh_digits(job),
      })
    end
    local outcome = settle_review(job, review, step, ids)
    save(job)
    return found($FOUND_OK, { [$FACT_COMPLETED] = true, [$FACT_STARTED] = outcome.started })
  end
  end_work(job)
  if options[$REVIEW_ON_TIMEOUT] == $ON_TIMEOUT_CANCEL then
    cancel_job(job, $CODE_REVIEW_TIMEOUT)
  else
    fail_step(job, review, $STEPPER_FAILED, cjson.encode({ {
      [$ERROR_CODE] = $CODE_REVIEW_TIMEOUT,
      [$ERROR_MESSAGE] = pending .. ' items were still undecided when the review was over; '
        .. 'execute it again to continue',
    } }))
  end
  save(job)
  return found($FOUND_OK, { [$FACT_COMPLETED] = false })
end
