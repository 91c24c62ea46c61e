-- COMPLETE_PART: store the result of a part of a split step. The last part joins them.
--
-- keys  none
-- args  1 job id   2 step   3 execution id   4 lease, 5 attempt, 6 token of its core job
--       7 part, from 0   8 value   9 field of the last part
-- answers
--   ok, {left}   parts that are missing, or not joined yet; 0 only for the last one, also if it
--                repeats the call
--   already      this execution has ended: nothing written
--   lost         another execution or attempt is current, the part is unknown, or the job is gone

operations[$WF_OPERATION_COMPLETE_PART] = function(_, arg, last)
  local running = running_at(arg)
  local name, execution = running.step, running.execution
  local part, value, last_field = unpack(ARGV, arg + 6, last)
  local job = load_job(running.job)
  local state = job and execution_state(job, name, execution, running) or $FOUND_LOST
  if state ~= $FOUND_OK then
    return found(state)
  end
  local parts = tonumber(job.step(name, $FIELD_PARTS)) or 0
  if tonumber(part) >= parts then
    return found($FOUND_LOST)
  end
  local done = tonumber(job.step(name, $FIELD_DONE)) or 0
  end_work(job)
  if redis.call('HSET', job.key($KEY_PARTS), execution .. ':' .. part, value) == 1 then
    done = done + 1
    record_progress(job, name, done, parts)
  end
  local left = parts - done
  if left <= 0 then -- names the part that joins, so that its crash is noticed
    local field = execution .. ':' .. last_field
    redis.call('HSETNX', job.key($KEY_PARTS), field, part)
    left = redis.call('HGET', job.key($KEY_PARTS), field) == part and 0 or 1
  end
  save(job)
  return found($FOUND_OK, { [$FACT_LEFT] = left })
end
