-- PRUNE_QUOTA: remove ended and missing jobs from the active jobs of a key. The set is an upper
-- bound for ENQUEUE, which only adds to it: operations that end a job need not know it.
--
-- keys  1 active jobs of the key, then the hash of each job
-- args  1 … the jobs' ids, in the order of their hashes
-- answers
--   ok, number          number of jobs removed

operations[$OPERATION_PRUNE_QUOTA] = function(key, arg, last)
  local ended = {}
  for at = arg, last do
    -- A key that is not a hash is not a job either.
    local status = redis.pcall('HGET', KEYS[key + 1 + at - arg], $JOB_STATUS)
    if type(status) ~= 'string' or TERMINAL[status] then
      ended[#ended + 1] = ARGV[at]
    end
  end
  if #ended == 0 then
    return { $ANSWER_OK, 0 }
  end
  return { $ANSWER_OK, redis.call('ZREM', KEYS[key], unpack(ended)) }
end
