-- REVERT: revert the effects of operations that did not complete: their execution failed, was
-- cancelled or lost its worker.
--
-- keys  none
-- args  1 job   2 step   3 a running execution that reverts its own effects; empty for none
--       4 lease, 5 attempt, 6 token of its core job: without them it reverts nothing itself
-- answers
--   ok, {items}   tokens of the reverted operations; what others have changed since stays
--   missing       the job does not exist
-- When all executions of a job are over, it is removed from the set of jobs with effects.

operations[$WF_OPERATION_REVERT] = function(_, arg)
  local running = running_at(arg)
  local id, own_execution = running.job, is_held(running) and running.execution or ''
  must_be(names.jobs_with_effects, 'set')
  local job = load_job(id)
  if not job then
    redis.call('SREM', names.jobs_with_effects, id)
    return found($FOUND_MISSING)
  end
  local incomplete, waiting = incomplete_operations(job, own_execution)
  local tokens = {}
  for _, left in ipairs(incomplete) do
    check_effects(left.operation) -- fails here, before any write, if a key has the wrong type
  end
  if #incomplete > 0 then
    end_work(job)
  end
  for at, left in ipairs(incomplete) do
    revert_effects(left.operation)
    redis.call('HDEL', job.key($KEY_OPERATIONS), left.token)
    tokens[at] = left.token
  end
  if #incomplete > 0 then
    save(job)
  end
  if not waiting then
    redis.call('SREM', names.jobs_with_effects, id)
  end
  return found($FOUND_OK, { [$FACT_ITEMS] = tokens })
end
