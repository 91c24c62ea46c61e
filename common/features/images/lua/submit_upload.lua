-- SUBMIT: the complete body is in the spool; create the core job that processes it.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
--       6 state of the rate, 7 active jobs of the caller's key   (both only with limits)
-- args  1 upload id   2 fresh id of the core job   3 content type   4 bytes   5 sha256
--       6 core ttl_s   7 consumer group   8 backlog limit   9 µs between requests   10 burst
--       11 max active
-- answers
--   ok, {job_id}        the job is on the queue; also if it was before (lost reply)
--   missing             the image does not exist (any more)
--   lost                another upload is current: nothing written
--   rate, full, quota   refused for now: nothing written, and the upload still has the guard
-- The facts of these are {wait_ms}, {backlog}, {active}.

operations[$IMG_OPERATION_SUBMIT] = function(key, arg, _, _, key_count)
  local upload, job_id, content_type, size, sha, ttl_s = unpack(ARGV, arg, arg + 5)
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  if image.upload == upload and image.job_id ~= '' then
    return found($FOUND_OK, { [$FACT_JOB_ID] = image.job_id })
  end
  if not is_uploading(image, upload) then
    return found($FOUND_LOST)
  end
  local admission = admission_at(key, key_count, arg + 6, 5)
  local reply = refusal_of(admission, true)
  if reply then
    return reply
  end
  check_core_job(job_id)

  redis.call('HSET', image.record, $RECORD_STATUS, $IMAGE_PROCESSING, $RECORD_JOB_ID, job_id,
    $RECORD_UPLOADED_TYPE, content_type, $RECORD_SOURCE_BYTES, size, $RECORD_SOURCE_DIGEST, sha,
    $RECORD_UPDATED_AT, now_rfc3339)
  redis.call('HDEL', image.record, $RECORD_UPLOAD_DEADLINE_MS)
  image.state = $IMAGE_PROCESSING
  local options = { [$OPTION_TENANT] = image.tenant ~= '' and image.tenant or nil }
  accept_core_job(job_id, cjson.encode({
    [$PAYLOAD_TOOL] = $IMAGE_TOOL,
    [$PAYLOAD_ARGS] = { [$ARGUMENT_IMAGE_ID] = image.id, [$ARGUMENT_UPLOAD_ID] = upload },
  }), ttl_s, nil, options)
  redis.call('ZADD', image.inflight, now_text, image.id)
  redis.call('EXPIRE', image.inflight, '$RECORD_TTL_MAX_S')
  set_guard(image)
  show(image, $STAGE_QUEUED, $PROGRESS_QUEUED)
  keep_image(image)
  admit(admission, job_id)
  return found($FOUND_OK, { [$FACT_JOB_ID] = job_id })
end
