-- DELETE: delete an image. The caller removes its files in spool and store, and cancels its core
-- job.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results   6 index of all tenants
--       7 recent deletions of this id
-- args  1 image id   2 token of this call
-- answers
--   ok, {status, storage_key, job_id?, upload_id?}   deleted now, or by the same call (lost reply)
--   missing                                          the image does not exist (any more)

operations[$IMG_OPERATION_DELETE] = function(key, arg)
  local image_id, token = ARGV[arg], ARGV[arg + 1]
  local index, deleted = KEYS[key + 5], KEYS[key + 6]
  must_be(index, 'zset')
  must_be(deleted, 'hash')
  local image = load_image(key)
  if not image then
    local stored = redis.call('HGET', deleted, token)
    return stored and found($FOUND_OK, cjson.decode(stored)) or found($FOUND_MISSING)
  end
  local own_index = image.tenant ~= '' and tag .. $KEY_INDEX_OF .. image.tenant
  if own_index then
    must_be(own_index, 'zset')
  end
  local facts = {
    [$FACT_STATUS] = image.state,
    [$FACT_STORAGE_KEY] = redis.call('HGET', image.record, $RESULT_STORAGE_KEY)
      or $STORAGE_PREFIX .. image_id .. $STORAGE_SUFFIX,
    [$FACT_UPLOAD_ID] = image.upload ~= '' and image.upload or nil,
    [$FACT_JOB_ID] = image.job_id ~= '' and image.job_id or nil,
  }
  redis.call('DEL', image.record, image.shown, image.guard)
  redis.call('ZREM', image.inflight, image_id)
  redis.call('ZREM', index, image_id)
  if own_index then
    redis.call('ZREM', own_index, image_id)
  end
  redis.call('HSET', deleted, token, cjson.encode(facts))
  redis.call('EXPIRE', deleted, '$DELETED_TTL_S')
  hint(image.shown)
  return found($FOUND_OK, facts)
end
