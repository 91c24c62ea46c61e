-- DISPATCH: run the records of a call one by one. A script does not roll back, so each record
-- checks before it writes, and the failure of one is its own reply and nobody else's.

local replies = {}
local key_at, arg_at = 1, 1
while arg_at < #ARGV do
  local operation = operations[ARGV[arg_at + 1]]
  local key_count, arg_count = tonumber(ARGV[arg_at + 2]), tonumber(ARGV[arg_at + 3])
  arg_at = arg_at + 3
  local keys, args = {}, {}
  for index = 1, key_count do
    keys[index] = KEYS[key_at + index]
  end
  for index = 1, arg_count do
    args[index] = ARGV[arg_at + index]
  end
  key_at, arg_at = key_at + key_count, arg_at + arg_count

  local ok, reply = pcall(operation, keys, args)
  if not ok then
    local message = type(reply) == 'table' and reply['err'] or tostring(reply)
    reply = { $ANSWER_FAILED, message }
  end
  replies[#replies + 1] = reply
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
