-- PRUNE_QUOTA: forget those of a key's active jobs that have ended, or are gone. The set is a hint for
-- ENQUEUE, which only adds to it: whoever ends a job, in whatever way, need not know of it.
--
-- keys  1 active jobs of the key, then the hash of each job
-- args  1 … the jobs' ids, in the order of their hashes
-- answers
--   ok, number          so many were forgotten

operations[$OPERATION_PRUNE_QUOTA] = function(key, arg, last)
  local ended = {}
  for at = arg, last do
    -- Something else than a hash is no job either.
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
