-- LOOK: a job and where it is, at one moment.
--
-- Around the package's script that tells where a job is, which has the keys and arguments before.
-- keys  -1 job hash
-- args  none of its own
-- answers
--   found, state, flat hash   this is it
--   missing                   there is no such job, whatever else has that name

local function state()
$SCRIPT
end

local job = KEYS[#KEYS]
if redis.call('TYPE', job)['ok'] ~= 'hash' or redis.call('HEXISTS', job, $FIELD_NAME) == 0
  or redis.call('HEXISTS', job, $FIELD_TIMESTAMP) == 0 then
  return { $ANSWER_MISSING }
end
return { $ANSWER_FOUND, state(), redis.call('HGETALL', job) }
