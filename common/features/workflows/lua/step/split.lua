-- SPLIT: continue a step in several core jobs; its present one is the first part.
--
-- keys  none
-- args  1 job id   2 step   3 execution id   4 lease, 5 attempt, 6 token of its core job
--       7 core ttl_s   8 … ids of core jobs for the others
-- answers
--   ok, {parts}        number of parts; the others are on the queue now
--   already, {parts}   it was split before, or has ended
--   lost               another execution or attempt is current, or the job is gone: nothing written

operations[$WF_OPERATION_SPLIT] = function(_, arg, last)
  local running = running_at(arg)
  local name, execution, ttl_s = running.step, running.execution, ARGV[arg + 6]
  local job = load_job(running.job)
  local state = job and execution_state(job, name, execution, running) or $FOUND_LOST
  if state == $FOUND_LOST then
    return found(state)
  end
  local parts = tonumber(job.step(name, $FIELD_PARTS))
  if parts or state ~= $FOUND_OK then
    return found($FOUND_ALREADY, { [$FACT_PARTS] = parts or 1 })
  end
  for at = arg + 7, last do
    check_ids({ core_job = ARGV[at] })
  end
  begin_work(job)
  local core_jobs = {}
  for at = arg + 7, last do
    core_jobs[#core_jobs + 1] = ARGV[at]
    accept_step(job, name, execution, ARGV[at], ttl_s, #core_jobs)
  end
  parts = #core_jobs + 1
  job.set_step(name, $FIELD_PARTS, parts)
  job.set_step(name, $FIELD_PART_JOBS, table.concat(core_jobs, ' '))
  job.set_step(name, $FIELD_DONE, 0)
  job.set_step(name, $FIELD_TOTAL, parts)
  save(job)
  return found($FOUND_OK, { [$FACT_PARTS] = parts })
end
