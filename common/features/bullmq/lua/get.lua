-- GET: a job and its state, at one moment.
--
-- Wraps the package's script that returns the state, whose keys and arguments precede these.
-- keys  -1 job hash
-- args  none
-- answers
--   found, state, flat hash   the job exists
--   missing                   there is no such job; another key may have that name

local function state()
$SCRIPT
end

local job = KEYS[#KEYS]
if redis.call('TYPE', job)['ok'] ~= 'hash' or redis.call('HEXISTS', job, $FIELD_NAME) == 0
  or redis.call('HEXISTS', job, $FIELD_TIMESTAMP) == 0 then
  return { $ANSWER_MISSING }
end
return { $ANSWER_FOUND, state(), redis.call('HGETALL', job) }
