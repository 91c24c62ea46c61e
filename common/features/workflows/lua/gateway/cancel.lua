-- CANCEL: end a job for good. The caller cancels its core jobs.
--
-- keys  1 stored answer
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       5 job id   6 reason ('' for none)
-- answers
--   ok, {core_jobs}        cancelled by this call; these core jobs may still run
--   already, {core_jobs}   cancelled before
--   missing                the job does not exist
--   reused                 the key was used with another request
--   refused, {code}        it has already ended otherwise

local CANCELLABLE = {
  [$WORKFLOW_QUEUED] = true, [$WORKFLOW_RUNNING] = true, [$WORKFLOW_WAITING_INPUT] = true,
}

-- Core jobs of the cancelled steps.
local function still_running(job)
  local core_jobs = {}
  for _, name in ipairs(job.step_names) do
    if job.step(name, $FIELD_STATUS) == $STEPPER_CANCELLED then
      for _, core_job in ipairs(core_jobs_of(job, name)) do
        core_jobs[#core_jobs + 1] = core_job
      end
    end
  end
  return { [$FACT_CORE_JOBS] = core_jobs }
end

operations[$WF_OPERATION_CANCEL] = function(key, arg)
  local once = once_at(key, arg)
  local job_id, reason = ARGV[arg + 4], ARGV[arg + 5]
  local job, reply = job_for(once, job_id)
  if not job then
    return reply
  end
  local status = job.get($RECORD_STATUS)
  if status == $WORKFLOW_CANCELLED then
    return found($FOUND_ALREADY, still_running(job))
  end
  if not CANCELLABLE[status] then
    return refuse($CODE_JOB_TERMINAL)
  end
  end_work(job)
  cancel_job(job, reason)
  save(job)
  return keep(once, found($FOUND_OK, still_running(job)))
end
