-- FAIL: fail a step, and with it the job; executing the step again resumes both.
--
-- keys  none
-- args  1 job id   2 step   3 execution id   4 errors JSON, a list   5 '1' if it was cancelled
-- answers
--   ok        ended by this call
--   already   this execution ended before
--   lost      another execution is current: nothing written
--   missing   the job does not exist; its entry in the running steps is removed

operations[$WF_OPERATION_FAIL] = function(_, arg, last)
  local job_id, name, execution, errors, cancelled = unpack(ARGV, arg, last)
  local job = load_job(job_id)
  if not job then
    if redis.call('HGET', names.running, job_id) == name .. ' ' .. execution then
      redis.call('HDEL', names.running, job_id)
    end
    return found($FOUND_MISSING)
  end
  local state = execution_state(job, name, execution)
  if state ~= $FOUND_OK then
    -- Only a step that is listed as running can be stranded.
    if redis.call('HGET', names.running, job_id) == name .. ' ' .. execution then
      redis.call('HDEL', names.running, job_id)
    end
    return found(state)
  end
  end_work(job)
  fail_step(job, name, cancelled == '1' and $STEPPER_CANCELLED or $STEPPER_FAILED, errors)
  save(job)
  return found($FOUND_OK)
end
