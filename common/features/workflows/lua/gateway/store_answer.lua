-- STORE_ANSWER: remember what a request was answered, for its repetitions.
--
-- keys  1 the answer kept
-- args  1 fingerprint   2 ttl_s   3 status code   4 body
-- answers
--   ok       kept; nobody waits for it any more
--   reused   the key came with another request before: nothing written

operations[$WF_OPERATION_STORE_ANSWER] = function(key, arg, last)
  local print, ttl_s, status_code, body = unpack(ARGV, arg, last)
  local kept = redis.call('HGET', KEYS[key], $REMEMBERED_FINGERPRINT)
  if kept and kept ~= print then
    return found($FOUND_REUSED)
  end
  redis.call('EXPIRE', KEYS[key], ttl_s)
  redis.call('HSET', KEYS[key], $REMEMBERED_FINGERPRINT, print, $REMEMBERED_CLAIMED_UNTIL_MS, '0',
    $REMEMBERED_STATUS_CODE, status_code, $REMEMBERED_BODY, body)
  redis.call('EXPIRE', KEYS[key], ttl_s)
  return found($FOUND_OK)
end
