-- TAKE_WAITING: transfer messages from wait queues to a worker, the oldest ones first.
--
-- keys  none
-- args  1 consumer group   2 consumer   3 max messages, then the wait queues (consumer names)
-- answers
--   ok, number, then for each message its id, the number of texts, and those: field, value …
--                 the messages belong to the consumer now. Their delivery count does not change:
--                 they have not been begun

operations[$OPERATION_TAKE_WAITING] = function(key, arg, last)
  local group, consumer, max_messages = unpack(ARGV, arg, arg + 2)
  local waiting = {}
  for at = arg + 3, last do
    local entries = redis.pcall('XPENDING', queue, group, '-', '+', max_messages, ARGV[at])
    if entries['err'] then
      return { $ANSWER_OK, 0 } -- no group, or no queue: nothing is waiting
    end
    for _, entry in ipairs(entries) do
      waiting[#waiting + 1] = entry[1]
    end
  end
  table.sort(waiting, older)

  local reply, transferred = { $ANSWER_OK, 0 }, 0
  for index = 1, math.min(#waiting, tonumber(max_messages)) do
    local message_id = waiting[index]
    local entry = redis.call('XRANGE', queue, message_id, message_id)[1]
    if entry then
      redis.call('XCLAIM', queue, group, consumer, 0, message_id, 'JUSTID')
      local texts = entry[2]
      reply[#reply + 1] = message_id
      reply[#reply + 1] = tostring(#texts)
      for _, text in ipairs(texts) do
        reply[#reply + 1] = text
      end
      transferred = transferred + 1
    else
      acknowledge(group, message_id) -- the entry was deleted: there is nothing to run
    end
  end
  reply[2] = transferred
  return reply
end
