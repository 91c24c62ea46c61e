-- DISPATCH: run the records of a call one by one. A script does not roll back, so each record
-- checks before it writes, and the failure of one is its own reply and nobody else's.

local replies = {}
local key, arg = 4, 5 + 5 * ARGV[4]
while arg <= #ARGV do
  local operation, identity, key_count, arg_count = unpack(ARGV, arg, arg + 3)
  local last = arg + 3 + arg_count
  local ok, reply = pcall(operations[operation], key, arg + 4, last, 5 + 5 * identity, key_count)
  if not ok then
    local message = type(reply) == 'table' and reply['err'] or tostring(reply)
    reply = { $ANSWER_FAILED, message }
  end
  replies[#replies + 1] = reply
  key, arg = key + key_count, last + 1
end

-- Counters and hints are conveniences: their failure must not hide what the records did.
if finished_jobs > 0 then
  redis.pcall('INCRBY', KEYS[1], finished_jobs)
  redis.pcall('EXPIRE', KEYS[1], $TTL_MAX_S)
end
if #hinted_jobs > 0 then
  redis.pcall('PUBLISH', ARGV[1], table.concat(hinted_jobs, ' '))
end
return replies
