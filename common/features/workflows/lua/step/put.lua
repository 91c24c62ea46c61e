-- PUT: store data of a step for later ones.
--
-- keys  none
-- args  1 job id   2 step   3 execution id   4 lease, 5 attempt, 6 token of its core job
--       7 name   8 value
-- answers
--   ok        stored
--   already   this execution has ended: nothing written
--   lost      another execution or attempt is current, or the job is gone: nothing written

operations[$WF_OPERATION_PUT] = function(_, arg, last)
  local running = running_at(arg)
  local name, execution = running.step, running.execution
  local what, value = unpack(ARGV, arg + 6, last)
  local job = load_job(running.job)
  local state = job and execution_state(job, name, execution, running) or $FOUND_LOST
  if state ~= $FOUND_OK then
    return found(state)
  end
  begin_work(job) -- refused without memory: the data may be large
  redis.call('HSET', job.key($KEY_DATA), execution .. ':' .. what, value)
  save(job)
  return found($FOUND_OK)
end
