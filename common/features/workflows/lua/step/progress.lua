-- PROGRESS: record the progress of a step. It never decreases within one execution.
--
-- keys  none
-- args  1 job id   2 step   3 execution id   4 lease, 5 attempt, 6 token of its core job
--       7 units done   8 units in total
-- answers
--   ok        recorded, or further progress is already recorded
--   already   this execution has ended
--   lost      another execution or attempt is current, or the job is gone: nothing written

operations[$WF_OPERATION_PROGRESS] = function(_, arg, last)
  local running = running_at(arg)
  local name, execution = running.step, running.execution
  local done, total = unpack(ARGV, arg + 6, last)
  local job = load_job(running.job)
  local state = job and execution_state(job, name, execution, running) or $FOUND_LOST
  if state ~= $FOUND_OK then
    return found(state)
  end
  if job.step(name, $FIELD_PARTS) ~= '' then -- a split step counts its parts
    return found($FOUND_OK)
  end
  done, total = tonumber(done), tonumber(total)
  local known_done = tonumber(job.step(name, $FIELD_DONE)) or 0
  local known_total = tonumber(job.step(name, $FIELD_TOTAL)) or 0
  if total < 1 or done * known_total <= known_done * total and known_total > 0 then
    return found($FOUND_OK)
  end
  end_work(job)
  record_progress(job, name, math.min(done, total), total)
  save(job)
  return found($FOUND_OK)
end
