-- TOUCH_WAITING: reset the idle time of messages in a wait queue, so that they are not recovered.
--
-- keys  none
-- args  1 consumer group   2 wait queue (consumer name)   3 first id, as a range start of XPENDING
--       4 max messages
-- answers
--   ok, number, then the ids of the messages whose idle time was reset

operations[$OPERATION_TOUCH_WAITING] = function(key, arg, last)
  local group, wait_queue, start, max_messages = unpack(ARGV, arg, last)
  local entries = redis.pcall('XPENDING', queue, group, start, '+', max_messages, wait_queue)
  if entries['err'] or #entries == 0 then
    return { $ANSWER_OK, 0 }
  end
  local reply, ids = { $ANSWER_OK, #entries }, {}
  for index, entry in ipairs(entries) do
    ids[index] = entry[1]
    reply[index + 2] = entry[1]
  end
  ids[#ids + 1] = 'JUSTID'
  redis.call('XCLAIM', queue, group, wait_queue, 0, unpack(ids))
  return reply
end
