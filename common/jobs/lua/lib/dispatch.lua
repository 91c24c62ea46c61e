-- DISPATCH: run the records of a call one by one. A script is not rolled back, so each record
-- checks before it writes. The failure of a record is its own reply and does not affect others.

-- The index may be too long by this many jobs: trimming it for each job would cost too much.
local INDEX_SLACK = 16

local replies = {}
local key, arg = 5, 6 + 5 * ARGV[5]
while arg <= #ARGV do
  local operation, identity, key_count, arg_count = unpack(ARGV, arg, arg + 3)
  local last = arg + 3 + arg_count
  local ok, reply = pcall(operations[operation], key, arg + 4, last, 6 + 5 * identity, key_count)
  if not ok then
    reply = failed(reply)
  end
  replies[#replies + 1] = reply
  key, arg = key + key_count, last + 1
end

-- Counts, index and hints are secondary: their failure must not hide the replies of the records.
-- Every accepted job ends, so only ends and the very first job extend the lifetime of the counts.
local lasting, trimming = false, true
for field, number in pairs(counted_jobs) do
  local total = redis.pcall('HINCRBY', KEYS[1], field, as_integer(number))
  if field ~= $COUNT_ACCEPTED or total == number then
    lasting = true
  elseif type(total) == 'number' then
    trimming = total % INDEX_SLACK < number
  end
end
if lasting then
  redis.pcall('EXPIRE', KEYS[1], $TTL_MAX_S)
end
if ARGV[4] ~= '0' then
  for at = 1, indexed, 1000 do -- Lua limits the number of unpacked values
    local added = redis.pcall('ZADD', KEYS[4], 'NX',
      unpack(indexed_jobs, at, math.min(at + 999, indexed)))
    if trimming and type(added) == 'number' and added > 0 then
      redis.pcall('ZREMRANGEBYRANK', KEYS[4], '0', as_integer(-1 - ARGV[4]))
    end
  end
end
if #hinted_jobs > 0 then
  redis.pcall('PUBLISH', ARGV[1], table.concat(hinted_jobs, ' '))
end
return replies
