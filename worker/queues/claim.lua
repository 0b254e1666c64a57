-- Take messages for one batch, and write down in the same call who has them.
-- KEYS 1 this worker's claims (hash: tag -> list \0 message)   2 leases (sorted set: worker -> expiry)
--      3 deliveries so far (hash: sha1 of message -> count)
--      4 queues of tenants (set of names)   5 weights of tenants (hash)
-- ARGV 1 what is asked, as JSON:
--        claim     its number, for the tags: counted by the worker, as a failover may roll back what is here
--        worker    who asks                        groups    queue -> compile key; tenants' queues too
--        pictures  how many are wanted             messages  how many may be taken at most
--        suspect   delivery from which on a message is suspect
--        idle      whether this worker has nothing else in hand
--        usual     steps of a message that says none
--        longest   steps of the longest job that shares the batch already, 0 if none does
--      2 accounts by level: what this script answered last time, {} at first
-- Strict priority between levels, inside a level in turns (turns.lua), inside a queue what is alike
-- (alike.lua). The first message decides the compile key of all the others. A suspect is taken alone,
-- by a worker with nothing else in hand: whoever dies with it cannot be counted for it.
-- Returns {accounts as JSON, {{tag, list, message, deliveries}, …}}, or false if this worker's lease is
-- gone: then it must join again first.
local ask, accounts = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
if not redis.call('ZSCORE', KEYS[2], ask.worker) then return false end
local retold = redis.call('HLEN', KEYS[3]) > 0
local taken, pictures, group, finished = {}, 0, nil, false

-- Which delivery of a message this is.
local function delivery_of(message)
  local before = retold and redis.call('HGET', KEYS[3], redis.sha1hex(message))
  return tonumber(before or 0) + 1
end

local batch = {
  pictures = ask.pictures, usual = ask.usual, longest = ask.longest, ahead = {},
  is_suspect = function(message) return delivery_of(message) >= ask.suspect end,
}

local places, tenants = {}, {['']=true}
local function add_place(queue, its_group, tenant, weight)
  places[#places + 1] =
    {queue = queue, group = its_group, tenant = tenant, weight = weight, empty_levels = 0}
end
local weights, weighed = {}, redis.call('HGETALL', KEYS[5])
for i = 1, #weighed, 2 do weights[weighed[i]] = tonumber(weighed[i + 1]) end
for queue, its_group in pairs(ask.groups) do add_place(queue, its_group, '', 1) end
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[4])) do
  local tenant, its_group = tenant_of(queue), ask.groups[string.match(queue, '^[^@]*')]
  if tenant then tenants[tenant] = true end
  if tenant and its_group and not ask.groups[queue] then
    local weight = weights[tenant] or 1
    add_place(queue, its_group, tenant, weight > 0 and weight or 1)
  end
end

-- Pictures taken, or nil if a suspect was met that must wait.
local function take(list)
  local message = draw(list, batch)
  local delivery = delivery_of(message)
  if delivery >= ask.suspect then
    finished = true
    if #taken > 0 or not ask.idle then
      put_back(list, message)
      return nil
    end
  end
  local tag = string.format('%d.%06d', ask.claim, #taken)
  redis.call('HSET', KEYS[1], tag, list .. '\0' .. message)
  taken[#taken + 1] = {tag, list, message, delivery}
  batch.longest = math.max(batch.longest, steps_of(message, batch))
  return math.max(1, header(message, 'images') or 1)
end

local function waiting_at(level)
  for _, place in ipairs(places) do
    place.left = redis.call('LLEN', place.queue .. level)
    if place.left == 0 then place.empty_levels = place.empty_levels + 1 end
  end
  return all_of(places, accounts[level])
end

-- Those who can share the batch, and whether there were no others.
local function narrow(all)
  local fitting, others = {}, 0
  for _, place in ipairs(all.places) do
    if not group or place.group == group then
      fitting[#fitting + 1] = place
    else
      others = others + place.left
    end
  end
  batch.lists = #fitting
  if others == 0 then return all, true end
  return all_of(fitting, all.account), false
end

local function serve(level)
  local all, free = narrow(waiting_at(level))
  while all.left > 0 and not finished do
    local queue = whose_turn(all)
    local place = queue.places[1]
    local got = take(place.queue .. level)
    if got then
      charge(queue, got / place.weight, free)
      pictures = pictures + got
      if not group then
        group = place.group
        all, free = narrow(all)
      end
      finished = finished or pictures >= ask.pictures or #taken >= ask.messages
    end
  end
  settle(accounts[level], tenants)
end

for _, level in ipairs(LEVELS) do
  if finished then break end
  accounts[level] = accounts[level] or {}
  serve(level)
end
for _, place in ipairs(places) do
  if place.empty_levels == #LEVELS then redis.call('SREM', KEYS[4], place.queue) end
end
return {cjson.encode(accounts), taken}
