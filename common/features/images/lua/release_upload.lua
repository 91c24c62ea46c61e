-- RELEASE: an upload has failed; release its guard.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id
-- answers
--   ok     the guard is free
--   lost   another upload has it, or one has finished, or the image is gone: nothing written

operations[$IMG_OPERATION_RELEASE] = function(key, arg)
  local image = load_image(key)
  if not image or image.state ~= $IMAGE_QUEUED then
    return found($FOUND_LOST)
  end
  if image.upload ~= ARGV[arg] then
    return found(is_claimed(image) and $FOUND_LOST or $FOUND_OK)
  end
  reset_upload(image)
  return found($FOUND_OK)
end
