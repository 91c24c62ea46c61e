-- REVERT: take back what an operation did beyond the workflow and did not bring to its end: its
-- execution failed, was cancelled or lost its worker.
--
-- keys  none
-- args  1 job   2 step   3 an execution that runs and takes back its own; empty for none
--       4 lease, 5 attempt, 6 token of its core job: one that has lost it takes back nothing of its own
-- answers
--   ok, {items}   these operations were taken back, by token; what others have changed since stays
--   missing       there is no such job
-- A job whose executions are all over is looked after no more.

operations[$WF_OPERATION_REVERT] = function(_, arg)
  local running = running_at(arg)
  local id, mine = running.job, is_held(running) and running.execution or ''
  must_be(names.unsettled, 'set')
  local job = load_job(id)
  if not job then
    redis.call('SREM', names.unsettled, id)
    return found($FOUND_MISSING)
  end
  local taken, waiting = leftovers(job, mine)
  local tokens = {}
  for _, left in ipairs(taken) do
    check_effects(left.operation) -- fails here, with nothing done, where a key is of another kind
  end
  if #taken > 0 then
    end_work(job)
  end
  for at, left in ipairs(taken) do
    revert_effects(left.operation)
    redis.call('HDEL', job.key($KEY_OPERATIONS), left.token)
    tokens[at] = left.token
  end
  if #taken > 0 then
    save(job)
  end
  if not waiting then
    redis.call('SREM', names.unsettled, id)
  end
  return found($FOUND_OK, { [$FACT_ITEMS] = tokens })
end
